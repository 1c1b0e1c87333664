"""Which runs go to a slower clock of their layout for an operator's power cap. Pure.

The step that costs the least speed for a watt comes first; runs that would miss their deadline come
last. Where a coarse step freed more than was needed, the dearest slower clocks are given back.

Invariant: only measured draw bounds anything, and only a locked clock bounds a draw.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from wattmesh.reconfig.catalogue import Evidence, OperatingPoint

MARGIN = 0.05
"""One board may draw this share more than its part of what all boards of a point drew."""

COUNTED = (Evidence.MEASURED, Evidence.VALIDATED)
"""Evidence whose power may be counted on; an assumed draw bounds nothing."""

LEAST_W = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLevel:
    """One clock of a layout. `affordable`: the deadline can be met at it."""

    point: OperatingPoint
    affordable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A run that trains.

    Attributes:
        gpus: the boards it trains on.
        levels: where it is, then slower clocks of its layout; empty when its point is not known.
    """

    run: str
    gpus: tuple[str, ...]
    levels: tuple[ClockLevel, ...] = ()


def draw_w(point: OperatingPoint) -> float | None:
    """Give the most one board draws at a point, watts; None when its power was not measured.

    The point's power may hold its share of the hosts too: then this is too high, never too low.
    """
    if point.evidence not in COUNTED:
        return None
    return point.power_w / point.gpus * (1.0 + MARGIN)


def needs_w(point: OperatingPoint) -> float:
    """Give the watts that a run must have room for at a point."""
    return point.power_w * (1.0 + MARGIN)


def levels(
    current: OperatingPoint | None, alike: Iterable[OperatingPoint], affordable: Iterable[str]
) -> tuple[ClockLevel, ...]:
    """List where a run is and the slower clocks of its layout, least draw last.

    Args:
        current: where it is; None when that is not known.
        alike: points of the same layout.
        affordable: ids of points at which the deadline can be met.
    """
    if current is None:
        return ()
    able = set(affordable)
    here = draw_w(current)
    slower = [
        each
        for each in alike
        if each.clock_mhz is not None
        and each.layout == current.layout
        and (current.clock_mhz is None or each.clock_mhz < current.clock_mhz)
        and draw_w(each) is not None
        and (here is None or (draw_w(each) or 0.0) < here)
    ]
    slower.sort(key=lambda each: -each.power_w / each.gpus)
    return tuple(ClockLevel(point=each, affordable=each.id in able) for each in (current, *slower))


def level_draw_w(level: ClockLevel) -> float:
    """Give the watts of one board at a level; infinite where no locked clock bounds them."""
    draw = draw_w(level.point) if level.point.clock_mhz is not None else None
    return float("inf") if draw is None else draw


class ClockDescent:
    """Takes runs to slower clocks: the level of each, what all boards may draw, the price paid.

    `bounds_w` is what the boards of each run are counted at, by its level.
    """

    def __init__(self, loads: Mapping[str, Load], bounds_w: Mapping[str, Sequence[float]]) -> None:
        """Take the runs; none is slowed yet."""
        self._loads = loads
        self._bounds_w = bounds_w
        self._total_w = 0.0
        self._paid: dict[str, float] = {}
        self.chosen: dict[str, int] = {}

    @property
    def price_per_w(self) -> float:
        """Most that was paid by a run that is slower than at the start."""
        return max((self._paid[run] for run in self._paid if self.chosen[run]), default=0.0)

    def start(self, levels: Mapping[str, int], others_w: float) -> None:
        """Begin at these levels; `others_w` is what all other boards are counted at."""
        self.chosen = dict(levels)
        self._total_w = others_w + sum(self._bounds_w[run][at] for run, at in levels.items())

    def down(self, cap_w: float) -> None:
        """Take the cheapest step of all runs, until the cap is kept or there is none."""
        nexts = [step for run in self.chosen if (step := self._step(run))]
        heapify(nexts)
        while nexts and self._total_w > cap_w + LEAST_W:
            _, price, run, level = heappop(nexts)
            self._paid[run] = max(price, self._paid.get(run, 0.0))
            self._go(run, level)
            if step := self._step(run):
                heappush(nexts, step)

    def back(self, cap_w: float) -> None:
        """Give back what is not needed to keep the cap, dearest first, to the fastest that fits."""
        for run in sorted(self._paid, key=lambda each: (-self._paid[each], each)):
            here_w = self._bounds_w[run][self.chosen[run]]
            for level in range(self.chosen[run]):
                if self._total_w + (self._bounds_w[run][level] - here_w) <= cap_w + LEAST_W:
                    self._go(run, level)
                    break

    def _go(self, run: str, level: int) -> None:
        bounds_w = self._bounds_w[run]
        self._total_w += bounds_w[level] - bounds_w[self.chosen[run]]
        self.chosen[run] = level

    def _step(self, run: str) -> tuple[bool, float, str, int] | None:
        """Give the cheapest step down of one run from where it is."""
        return _next(self._loads[run], self.chosen[run], self._bounds_w[run])


def _next(load: Load, at: int, bounds: Sequence[float]) -> tuple[bool, float, str, int] | None:
    """Give (late, price, run, level) of a run's cheapest step down; None when there is none."""
    found = []
    for level in range(at + 1, len(load.levels)):
        freed_w = bounds[at] - bounds[level]
        if freed_w > LEAST_W:
            here, there = load.levels[at].point, load.levels[level]
            lost = (here.tokens_per_s - there.point.tokens_per_s) / load.levels[
                0
            ].point.tokens_per_s
            found.append((not there.affordable, lost / freed_w, load.run, level))
    return min(found, default=None)
