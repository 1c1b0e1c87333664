"""Time of a held GPU that nobody booked: what remains when coverage is taken from holding. Pure.

A sampler books every moment of a device from its first reading on, as joules or as unobserved, and
says up to when (`CounterBaseline.at`). What lies outside is nobody's: no agent runs there, it died,
or the device was never seen. The controller books that time itself, for each GPU a run holds.

Invariant: a second that a run held a GPU is covered or unread, never both and never neither; the
newest seconds alone wait, while the next delivery is not late.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid, Span
from wattmesh.telemetry.energy.meter import UNKNOWN_LIMIT_W

UNOBSERVED = "unobserved"
"""The ledger line of this time, and the source of its rows: no meter, the controller itself."""

UNKNOWN_GPU = "unknown:"
"""How the GPUs of a run are called, all together, that are not known; its id follows."""

PATIENCE = timedelta(seconds=60)
"""So long a device may lag before its newest seconds count as unread: six deliveries."""

MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Time in which one launch of a run held GPUs.

    Attributes:
        run: "" of GPUs that a launch does without, because its run gave them back: nobody's, unless
            another run holds them.
        gpus: UUIDs; ranks whose GPU is not known are left out, and counted in `unknown`: whatever
            number a launch told, it is no list.
        end: when the launch ended or was last heard; now while it lives.
    """

    run: str
    incarnation: str
    gpus: tuple[str, ...]
    start: datetime
    end: datetime
    unknown: int = 0

    def found(self, read: Collection[str]) -> "Holding":
        """Give the same with the GPUs by name that ranks did not tell, as far as they are known.

        Args:
            read: GPUs whose joules were booked to the run in this time: they are those of some such
                ranks.
        """
        others = sorted({*read}.difference(self.gpus))
        left = max(0, self.unknown - len(others))
        return replace(self, gpus=(*self.gpus, *others), unknown=left)


def unread(holding: Span, covered: Sequence[Span], now: datetime) -> list[Span]:
    """Give the parts of a holding that no sampler booked.

    Args:
        holding: time in which a run held the device.
        covered: time in which it is booked; of a device that was never read, none.
        now: the wall clock.
    """
    newest = max((until for _, until in covered), default=None)
    if newest is not None and now - newest <= PATIENCE:
        return without(holding, [*covered, (newest, max(now, newest, holding[1]))])
    return without(holding, covered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """From `start` until its run's next one: no GPU of it drew more than `power_w`; 0: unknown."""

    start: datetime
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that boards can draw.

    Attributes:
        by_gpu: the highest limit that can be set on the board, as it told.
        by_run: where no board tells: what GPUs were measured to draw, by run and in time order.
    """

    by_gpu: Mapping[str, float]
    by_run: Mapping[str, Sequence[Ceiling]] = field(default_factory=dict)

    def of(self, gpu: str, run: str, slot: Span) -> float:
        """Give watts that a GPU does not exceed: its own limit, what its run drew there, the worst.

        What other boards tell is no bound: this one may be of another kind.
        """
        return self.by_gpu.get(gpu) or self._drawn_w(run, slot) or UNKNOWN_LIMIT_W

    def _drawn_w(self, run: str, slot: Span) -> float:
        """Give the most that GPUs drew where the run was in a slot; 0: not known of all of it."""
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
    """Give the rows of all time that nobody booked, whole, one for each GPU, run and slot.

    GPUs of a run that are not known have one row together: GPU seconds, and the most of them all.
    From below they are bounded by nothing: a board that nobody reads may be off.
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
    """Give how many GPUs of a name were held, by whom and when; nobody's only where no run's."""
    every = tuple(holdings)
    given_back = {gpu for each in every if not each.run for gpu in each.gpus}
    taken: dict[str, list[Span]] = {gpu: [] for gpu in given_back}
    for each in sorted(every, key=lambda one: not one.run):
        for gpu in each.gpus:
            span = (each.start, each.end)
            for part in [span] if each.run else without(span, taken[gpu]):
                yield gpu, 1, each, part
            if gpu in taken:
                taken[gpu].append(span)
        if each.unknown:
            yield f"{UNKNOWN_GPU}{each.run}", each.unknown, each, (each.start, each.end)


def without(span: Span, taken: Iterable[Span]) -> list[Span]:
    """Give the parts of a span that lie in none of these."""
    at, end = span
    parts = []
    for start, until in sorted(taken):
        if at < min(start, end):
            parts.append((at, min(start, end)))
        at = max(at, until)
    return [*parts, (at, end)] if at < end else parts
