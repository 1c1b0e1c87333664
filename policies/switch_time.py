"""How long a switch takes, as the deadline guard counts it. Pure.

*Complete* is a switch from the boundary at which it began until the first step at normal pace has
ended, so that what is compiled for the new layout is in it. A run that reports its new layout long
before that gives an incomplete figure: the switch took at least so long.

The rule, for one pair of points and one kind of switch (`counted_s`):

1. The catalogue's figure is the pair's own where it has one, else what holds for all switches of
   that kind. It is a cold one: nothing compiled yet.
2. Until ENOUGH complete switches of the same pair and kind were measured by this launch's machines,
   the larger of the catalogue's figure and of everything measured counts.
3. From then on the QUANTILE of the complete ones counts, though the catalogue's be larger: they are
   warm where it is cold.
4. An incomplete one that took longer raises either figure, and lowers none.

Invariant: what was measured of one pair says nothing of another, nor of another kind.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from wattmesh.reconfig.catalogue import PAUSED, OperatingPoint, SwitchCost

QUANTILE = 0.95
"""The next switch of a pair is to be within its figure with this chance."""

ENOUGH = 19
"""The least number of measurements of which any bounds the next one with that chance: of n alike
the next exceeds the largest once in n + 1 times, and 1 / 20 is 5 %. No law of distribution is
assumed (a prediction interval by ranks)."""


class SwitchKind(StrEnum):
    """How a run gets from one point to another."""

    IN_PLACE = "in_place"
    RESTART = "restart"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRecord:
    """One switch of a run as it was measured.

    Attributes:
        origin, target: point ids, or `paused`. `kind`: as it was ordered.
        told_s: from the boundary until the run said that a layout stands.
        at_pace_s: until the first step at normal pace had ended; None: nobody saw that.
        ago_s: since it said so. `failed`: it went back to `origin`.
        same_machines: no launch that nobody of us ordered came between it and now, so that what
            was compiled then is likely there still.
    """

    origin: str
    target: str
    kind: SwitchKind
    told_s: float
    at_pace_s: float | None = None
    ago_s: float = 0.0
    failed: bool = False
    same_machines: bool = True

    @property
    def complete(self) -> bool:
        """Whether the first step at normal pace is in it."""
        return self.at_pace_s is not None

    @property
    def seconds(self) -> float:
        """Seconds that it took, or took at least."""
        return max(self.told_s, self.at_pace_s or 0.0)


def counted_s(
    switch: SwitchCost, records: Iterable[SwitchRecord], origin: str, target: str, kind: SwitchKind
) -> float:
    """Give the seconds that a switch is counted at, by the rule above.

    Args:
        switch: the catalogue's costs.
        records: the run's newest switches.
        origin: point id, or `paused`.
        target: the same.
        kind: how it would be done.
    """
    alike = [
        each
        for each in records
        if (each.origin, each.target, each.kind) == (origin, target, kind) and not each.failed
    ]
    complete = sorted(each.seconds for each in alike if each.complete and each.same_machines)
    if len(complete) >= ENOUGH:
        rank = ceil(QUANTILE * (len(complete) + 1))
        partial = (each.seconds for each in alike if not each.complete)
        return max(complete[min(rank, len(complete)) - 1], *partial, 0.0)
    return max(catalogued_s(switch, origin, target, kind), *(each.seconds for each in alike), 0.0)


def catalogued_s(switch: SwitchCost, origin: str, target: str, kind: SwitchKind) -> float:
    """Give the catalogue's own figure, cold."""
    pair = switch.between(origin, target)
    if pair is not None:
        return pair.seconds
    return switch.clock_s if kind is SwitchKind.CLOCK else switch.layout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTimes:
    """What each switch of one run is counted at; None stands for asleep.

    Attributes:
        switch: the catalogue's costs. `records`: the run's newest switches, newest first.
        in_place: whether the run changes its layout within its processes. `resizes`: not where it
            goes to another size.
    """

    switch: SwitchCost
    records: tuple[SwitchRecord, ...] = ()
    in_place: bool = True
    resizes: bool = False

    def kind(self, origin: OperatingPoint | None, target: OperatingPoint | None) -> SwitchKind:
        """Give how the run would get from one to the other."""
        if origin is None or target is None:
            return SwitchKind.RESTART
        if origin.layout == target.layout:
            return SwitchKind.CLOCK
        here = self.in_place and not (self.resizes and origin.gpus != target.gpus)
        return SwitchKind.IN_PLACE if here else SwitchKind.RESTART

    def seconds(self, origin: OperatingPoint | None, target: OperatingPoint | None) -> float:
        """Give the seconds from one point to another."""
        ends = (origin.id if origin else PAUSED, target.id if target else PAUSED)
        return counted_s(self.switch, self.records, *ends, self.kind(origin, target))

    def longest_s(self, target: OperatingPoint) -> float:
        """Give the most seconds of a switch to `target`, wherever the run is now."""
        pairs = [each.seconds for each in self.switch.pairs if each.target == target.id]
        seen = [each.seconds for each in self.records if each.target == target.id]
        return max(self.switch.layout_s, *pairs, *seen, 0.0)

    def of(self, record: SwitchRecord) -> float:
        """Give what a switch like one that was recorded is counted at."""
        return counted_s(self.switch, self.records, record.origin, record.target, record.kind)
