"""Time of a held GPU that nobody booked: what remains when coverage is taken from holding. Pure.

A sampler books every moment of a device from its first reading on, as joules or as unobserved, and
says up to when (`CounterBaseline.at`). What lies outside is nobody's: no agent runs there, it died,
or the device was never seen. The controller books that time itself, for each GPU a run holds.

Invariant: a second that a run held a GPU is covered or unread, never both and never neither; the
newest seconds alone wait, while the next delivery is not late.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.telemetry.ledger import EnergyRow, SlotGrid
from wattmesh.telemetry.meter import UNKNOWN_LIMIT_W

UNOBSERVED = "unobserved"
"""The ledger line of this time, and the source of its rows: no meter, the controller itself."""

PATIENCE = timedelta(seconds=60)
"""So long a device may lag before its newest seconds count as unread: six deliveries."""

MILLISECOND = timedelta(milliseconds=1)

Span = tuple[datetime, datetime]
"""Half-open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Time in which one launch of a run held GPUs.

    Attributes:
        run: "" of GPUs that a launch does without, because its run gave them back: nobody's, unless
            another run holds them.
        gpus: UUIDs; ranks whose GPU is not known are left out.
        end: when the launch ended or was last heard; now while it lives.
    """

    run: str
    incarnation: str
    gpus: tuple[str, ...]
    start: datetime
    end: datetime


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
class Limits:
    """The most that boards can draw.

    Attributes:
        by_gpu: enforced or highest limit, as the board told it last. `largest_w`: the largest draw
            that was measured of any GPU here; 0 while none was.
    """

    by_gpu: Mapping[str, float]
    largest_w: float = 0.0

    def of(self, gpu: str) -> float:
        """Give watts that a GPU does not exceed: its limit, its peers', their largest draw."""
        peers_w = max(self.by_gpu.values(), default=self.largest_w)
        return self.by_gpu.get(gpu) or peers_w or UNKNOWN_LIMIT_W


def rows(
    holdings: Iterable[Holding],
    covered: Mapping[str, Sequence[Span]],
    grid: SlotGrid,
    limits: Limits,
    now: datetime,
) -> list[EnergyRow]:
    """Give the rows of all time that nobody booked, whole, one for each GPU, run and slot.

    From below they are bounded by nothing: a board that nobody reads may be off.
    """
    held_ms: Counter[tuple[str, Holding, Span]] = Counter()
    for gpu, each, held in _apart(holdings):
        for start, end in unread(held, covered.get(gpu, ()), now):
            for at, until in grid.parts(start, end):
                held_ms[gpu, each, grid.slot(at)] += (until - at) // MILLISECOND
    found: dict[tuple[str, str, datetime], EnergyRow] = {}
    for (gpu, each, slot), added_ms in held_ms.items():
        key = (gpu, each.run, slot[0])
        length_ms = added_ms + (found[key].unobserved_ms if key in found else 0)
        found[key] = EnergyRow(
            gpu_uuid=gpu,
            run=each.run,
            incarnation=each.incarnation,
            slot_start=slot[0],
            slot_end=slot[1],
            energy_mj=None,
            unobserved_ms=length_ms,
            upper_mj=-(-round(1000 * limits.of(gpu)) * length_ms // 1000),
            source=UNOBSERVED,
            quality="estimated",
            line=UNOBSERVED,
        )
    return [row for row in found.values() if row.unobserved_ms]


def _apart(holdings: Iterable[Holding]) -> Iterator[tuple[str, Holding, Span]]:
    """Give who held each GPU when; nobody only where no run did, and once."""
    every = tuple(holdings)
    given_back = {gpu for each in every if not each.run for gpu in each.gpus}
    taken: dict[str, list[Span]] = {gpu: [] for gpu in given_back}
    for each in sorted(every, key=lambda one: not one.run):
        for gpu in each.gpus:
            span = (each.start, each.end)
            for part in [span] if each.run else without(span, taken[gpu]):
                yield gpu, each, part
            if gpu in taken:
                taken[gpu].append(span)


def without(span: Span, taken: Iterable[Span]) -> list[Span]:
    """Give the parts of a span that lie in none of these."""
    at, end = span
    parts = []
    for start, until in sorted(taken):
        if at < min(start, end):
            parts.append((at, min(start, end)))
        at = max(at, until)
    return [*parts, (at, end)] if at < end else parts
