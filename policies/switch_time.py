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

What a *plan* expects of a switch is another thing: the guard must not be surprised, a plan is to be
right on average. `expected_stall` gives it, the first of these that there is:

1. The median of the pair's complete switches, of at least FEW.
2. The catalogue's own figure of the pair, or what its profile measured of it in place, or what was
   measured of fewer, whichever is larger.
3. For a switch in place, what others of the run (else of its profile) predict (`switch_model.py`),
   where that is sure enough; again not less than what was measured of fewer.
4. What counts for the guard.

Invariant: what was measured of one pair says nothing of another, nor of another kind, in what the
guard counts; the guard never counts on a prediction.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from statistics import median

from wattmesh.policies.switch_model import PredictedSwitch, SwitchForecast, forecast, whole_s
from wattmesh.reconfig.catalogue import PAUSED, Catalogue, OperatingPoint, SwitchCost, SwitchSpend

QUANTILE = 0.95
"""The next switch of a pair is to be within its figure with this chance."""

ENOUGH = 19
"""The least number of measurements of which any bounds the next one with that chance: of n alike
the next exceeds the largest once in n + 1 times, and 1 / 20 is 5 %. No law of distribution is
assumed (a prediction interval by ranks)."""


FEW = 3
"""The least number of complete measurements whose median a plan expects: of fewer, one that is far
off would be it."""


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
        spend: what it spent by phase; None: not known.
    """

    origin: str
    target: str
    kind: SwitchKind
    told_s: float
    at_pace_s: float | None = None
    ago_s: float = 0.0
    failed: bool = False
    same_machines: bool = True
    spend: SwitchSpend | None = None

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


RUN, PROFILE = "run", "profile"
"""Whose switches a stall is known from."""


class StallBasis(StrEnum):
    """Where the seconds of a switch come from."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    STATED = "stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """How long a switch is expected to keep a run from training at its pace.

    Attributes:
        low_s, high_s: the shortest and longest that were measured, or the band of the prediction;
            None: not known.
        times: switches behind it, of this pair where it was measured; 0: only the catalogue says.
        source: whose switches they are: `run` or `profile`; "" without any.
        state_bytes: of the state that it was predicted for; 0: it was not.
        predicted: by phase, where it was predicted.
    """

    seconds: float
    basis: StallBasis
    times: int = 0
    low_s: float | None = None
    high_s: float | None = None
    source: str = ""
    state_bytes: int = 0
    predicted: PredictedSwitch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTimes:
    """What each switch of one run is counted at; None stands for asleep.

    Attributes:
        switch: the catalogue's costs. `records`: the run's newest switches, newest first.
        forecast: predicts switches in place that were not measured; None: nobody can.
        in_place: whether the run changes its layout within its processes. `resizes`: not where it
            goes to another size.
    """

    switch: SwitchCost
    records: tuple[SwitchRecord, ...] = ()
    in_place: bool = True
    resizes: bool = False
    forecast: SwitchForecast | None = None

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

    def expected(self, origin: OperatingPoint | None, target: OperatingPoint | None) -> Stall:
        """Give what a plan expects of a switch from one point to another, by the rule above."""
        ends = (origin.id if origin else PAUSED, target.id if target else PAUSED)
        kind = self.kind(origin, target)
        alike = sorted(
            each.seconds
            for each in self.records
            if (each.origin, each.target, each.kind) == (*ends, kind)
            and each.complete
            and each.same_machines
            and not each.failed
        )
        if len(alike) >= FEW:
            return Stall(
                seconds=median(alike),
                basis=StallBasis.MEASURED,
                times=len(alike),
                low_s=alike[0],
                high_s=alike[-1],
                source=RUN,
            )
        found = self._without_enough(ends, kind)
        if alike and alike[-1] >= found.seconds:
            seconds = alike[-1]
            return Stall(seconds=seconds, basis=StallBasis.MEASURED, times=len(alike), source=RUN)
        return found

    def _without_enough(self, ends: tuple[str, str], kind: SwitchKind) -> Stall:
        pair = self.switch.between(*ends)
        if pair is not None:
            times = sum((each.origin, each.target) == ends for each in self.switch.spends)
            basis = StallBasis.MEASURED if times else StallBasis.STATED
            source = PROFILE if times else ""
            return Stall(seconds=pair.seconds, basis=basis, times=times, source=source)
        whole = [whole_s(each) for each in self.switch.spends if (each.origin, each.target) == ends]
        profiled = [each for each in whole if each is not None]
        if profiled and kind is SwitchKind.IN_PLACE:
            few = len(profiled) < FEW
            return Stall(
                seconds=max(profiled) if few else median(profiled),
                basis=StallBasis.MEASURED,
                times=len(profiled),
                low_s=None if few else min(profiled),
                high_s=None if few else max(profiled),
                source=PROFILE,
            )
        known = self.forecast if kind is SwitchKind.IN_PLACE else None
        prediction = known.between(*ends) if known else None
        if known is not None and prediction is not None and prediction.sure:
            return Stall(
                seconds=prediction.seconds,
                basis=StallBasis.PREDICTED,
                times=prediction.samples,
                low_s=prediction.low_s,
                high_s=prediction.high_s,
                source=RUN if known.own else PROFILE,
                state_bytes=known.state_bytes,
                predicted=prediction,
            )
        counted = counted_s(self.switch, self.records, *ends, kind)
        return Stall(seconds=counted, basis=StallBasis.STATED)

    def longest_s(self, target: OperatingPoint) -> float:
        """Give the most seconds of a switch to `target`, wherever the run is now."""
        pairs = [each.seconds for each in self.switch.pairs if each.target == target.id]
        seen = [each.seconds for each in self.records if each.target == target.id]
        return max(self.switch.layout_s, *pairs, *seen, 0.0)

    def of(self, record: SwitchRecord) -> float:
        """Give what a switch like one that was recorded is counted at."""
        return counted_s(self.switch, self.records, record.origin, record.target, record.kind)


def forecast_of(catalogue: Catalogue, records: Iterable[SwitchRecord]) -> SwitchForecast | None:
    """Learn to predict a run's switches in place; None: nothing can be predicted.

    Args:
        catalogue: its points, and what the switches of its profile spent.
        records: the run's newest switches, newest first.
    """
    own = [
        each.spend
        for each in records
        if each.spend is not None
        and each.kind is SwitchKind.IN_PLACE
        and each.same_machines
        and not each.failed
    ]
    layouts = {each.id: each.layout for each in catalogue.points}
    return forecast(layouts, own, catalogue.switch.spends)
