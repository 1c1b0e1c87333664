"""Finds the time of held GPUs that no sampler booked: held time minus covered time. Pure.

A sampler books every moment of a device from its first reading on, as joules or as unobserved, up
to `CounterBaseline.at`. Time outside is not booked: no agent runs there, it died, or the device was
never read. The controller books that time itself, for each GPU that a run holds.

Invariant: each second that a run held a GPU is either covered or unread; only the newest seconds
are neither, until the next report is late.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid, Span
from wattmesh.telemetry.energy.meter import UNKNOWN_LIMIT_W

UNOBSERVED = "unobserved"
"""Line and source of these rows: they come from the controller, not from a meter."""

UNKNOWN_GPU = "unknown:"
"""Prefix of the device name that stands for a run's unknown GPUs together; the run's id follows."""

PATIENCE = timedelta(seconds=60)
"""How long a device may lag before its newest seconds count as unread: six reports."""

MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A time in which one launch of a run held GPUs.

    Attributes:
        run: "" for GPUs that the run released: nobody's, unless another run holds them.
        gpus: UUIDs of the known GPUs.
        end: when the launch ended or was last heard from; now while it lives.
        unknown: number of ranks whose GPU is not known.
        spare: the run's job has the GPUs and its ranks do not use them: they are its own where no
            run's ranks have them, so that no second counts twice.
    """

    run: str
    incarnation: str
    gpus: tuple[str, ...]
    start: datetime
    end: datetime
    unknown: int = 0
    spare: bool = False

    def with_gpus_read(self, read: Collection[str]) -> "Holding":
        """Name unknown GPUs, as far as booked rows of the run name further ones.

        Args:
            read: GPUs with energy booked to the run in this time.
        """
        others = sorted({*read}.difference(self.gpus))
        left = max(0, self.unknown - len(others))
        return replace(self, gpus=(*self.gpus, *others), unknown=left)


def unread(holding: Span, covered: Sequence[Span], now: datetime) -> list[Span]:
    """Return the parts of a holding that no sampler booked.

    Args:
        holding: time in which a run held the device.
        covered: the booked time; empty for a device that was never read.
        now: the wall clock.
    """
    newest = max((until for _, until in covered), default=None)
    if newest is not None and now - newest <= PATIENCE:
        return without(holding, [*covered, (newest, max(now, newest, holding[1]))])
    return without(holding, covered)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerBound:
    """A bound from `start` until the run's next one, in watts per GPU; 0: unknown."""

    start: datetime
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of the power of boards.

    Attributes:
        by_gpu: the highest limit that the board accepts.
        by_run: for boards without a known limit: measured draws, by run and in time order.
    """

    by_gpu: Mapping[str, float]
    by_run: Mapping[str, Sequence[PowerBound]] = field(default_factory=dict)

    def of(self, gpu: str, run: str, slot: Span) -> float:
        """Return a bound of a GPU's power in watts.

        It is the board's own limit, else its run's measured draw, else the worst case. The limits
        of other boards are no bound: this board may be of another kind.
        """
        return self.by_gpu.get(gpu) or self._drawn_w(run, slot) or UNKNOWN_LIMIT_W

    def _drawn_w(self, run: str, slot: Span) -> float:
        """Highest draw of the run's GPUs in a slot; 0 unless all of the slot is known."""
        every = self.by_run.get(run, ())
        first = max(0, bisect_right(every, slot[0], key=lambda each: each.start) - 1)
        until = bisect_left(every, slot[1], key=lambda each: each.start)
        powers_w = [each.power_w for each in every[first:until]]
        return max(powers_w) if powers_w and all(powers_w) else 0.0


def rows(
    holdings: Iterable[Holding],
    covered: Mapping[str, Sequence[Span]],
    grid: SlotGrid,
    limits: Limits,
    now: datetime,
) -> list[EnergyRow]:
    """Return whole rows for all time that was not booked, one per GPU, run and slot.

    Unknown GPUs of a run share one row, with GPU-seconds and the bound of all of them. There is no
    lower bound: a board that nobody reads may be off.
    """
    held_ms: Counter[tuple[str, str, str, Span]] = Counter()
    for gpu, count, each, held in _apart(holdings):
        for start, end in unread(held, covered.get(gpu, ()), now):
            for at, until in grid.parts(start, end):
                slot = grid.slot(at)
                held_ms[gpu, each.run, each.incarnation, slot] += count * (
                    (until - at) // MILLISECOND
                )
    found: dict[tuple[str, str, datetime], EnergyRow] = {}
    for (gpu, run, incarnation, slot), added_ms in held_ms.items():
        key = (gpu, run, slot[0])
        length_ms = added_ms + (found[key].unobserved_ms if key in found else 0)
        found[key] = EnergyRow(
            gpu_uuid=gpu,
            run=run,
            incarnation=incarnation,
            slot_start=slot[0],
            slot_end=slot[1],
            energy_mj=None,
            unobserved_ms=length_ms,
            upper_mj=-(-round(1000 * limits.of(gpu, run, slot)) * length_ms // 1000),
            source=UNOBSERVED,
            quality="estimated",
            line=UNOBSERVED,
        )
    return [row for row in found.values() if row.unobserved_ms]


def _apart(holdings: Iterable[Holding]) -> Iterator[tuple[str, int, Holding, Span]]:
    """Yield device, count, holding and span; released and spare ones only where no rank has them.

    A spare GPU goes before a released one: somebody has it.
    """
    every = tuple(holdings)
    others = {gpu for each in every if each.spare or not each.run for gpu in each.gpus}
    taken: dict[str, list[Span]] = {gpu: [] for gpu in others}
    for each in sorted(every, key=lambda one: (not one.run, one.spare)):
        for gpu in each.gpus:
            span = (each.start, each.end)
            used = each.run and not each.spare
            for part in [span] if used else without(span, taken[gpu]):
                yield gpu, 1, each, part
            if gpu in taken:
                taken[gpu].append(span)
        if each.unknown:
            yield f"{UNKNOWN_GPU}{each.run}", each.unknown, each, (each.start, each.end)


def without(span: Span, taken: Iterable[Span]) -> list[Span]:
    """Return the parts of a span outside of the taken ones."""
    at, end = span
    parts = []
    for start, until in sorted(taken):
        if at < min(start, end):
            parts.append((at, min(start, end)))
        at = max(at, until)
    return [*parts, (at, end)] if at < end else parts
