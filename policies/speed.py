"""What speed can be counted on at each point, by what is known of it. Pure.

A catalogue's speed was measured in another launch, on machines and at a time that nobody compares
with today's, or not measured at all. So a share of it is kept in reserve (`SpeedReserve`), by the
point's evidence, until steps were measured at that point by this launch's machines; then the
reserve is what the mean of so many steps may be off, and the operator's margin.

With c a point's speed in the catalogue, r the reserve of its evidence, z the operator's margin
(`policy.guard_margin`: how far speed goes down and up by the hour), m <= c the mean over n steps:

    not measured   at least c (1 - r) (1 - z)              at most c / (1 - r)
    measured       at least m (1 - z) (1 - r / sqrt(n))    at most m / (1 - z) / (1 - r / sqrt(n))

Measured inside the reserve a point is counted at c (1 - r) (1 - z) at least: what was counted on
before is counted on after. Measured below, at m, and points that were never measured are taken to
be as slow. At a higher clock a layout is at least as fast as at a lower one.

m is the best mean of any stretch that was watched (`watch`), for a point that did as much at one
hour does at least 1 - z of it at any other; a later mean that is lower by more takes its place.

Invariant: while every speed is inside its reserve, what is counted on is never above what a point
does, and never falls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import sqrt

from wattmesh.reconfig.catalogue import Evidence, OperatingPoint

DAY_S = 86_400.0

STANDSTILL = 0.01
"""Share of its catalogue speed below which a run is not slow but stands; time stays finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedReserve:
    """Share of a catalogue's speed that is not counted on until it is measured, by evidence.

    Attributes:
        validated, measured: another launch's figures. Boards of one kind differ by 8 % on average
            and by up to 22 % (Sinha et al., "Not All GPUs Are Created Equal", SC 2022); a job is as
            slow as its slowest board.
        predicted: that, and 20 % by which the cost model may be off (its error on layouts like
            those it was fitted on is 7 to 15 %): 1 - 0.75 x 0.8.
        assumed: nobody measured anything: a half.
    """

    validated: float = 0.25
    measured: float = 0.25
    predicted: float = 0.4
    assumed: float = 0.5

    def of(self, point: OperatingPoint) -> float:
        """Give the reserve of a point, by its evidence, or by its speed's source if that is less.

        A validated point may have a speed that was assumed.
        """
        source = point.sources.get("tokens_per_s", "")
        by_source = {"assumed": self.assumed, "predicted": self.predicted}.get(source, 0.0)
        by_evidence = {
            Evidence.VALIDATED: self.validated,
            Evidence.MEASURED: self.measured,
            Evidence.PREDICTED: self.predicted,
            Evidence.ASSUMED: self.assumed,
        }[point.evidence]
        return max(by_source, by_evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """What one point did on this launch's machines: the mean over `steps`, boundaries included."""

    point: str
    tokens_per_s: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A stretch of training at one point, as it began. `noted`: steps of it that were measured."""

    point: str
    at_s: float
    tokens: float
    step: int
    noted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedWatch:
    """What was measured of a launch so far: one speed for each point, and the running stretch."""

    speeds: tuple[MeasuredSpeed, ...] = ()
    stay: Stay | None = None


def watch(
    before: SpeedWatch,
    *,
    point: str,
    at_s: float,
    tokens: float,
    step: int,
    least_steps: int,
    margin: float,
) -> SpeedWatch:
    """Look at a run that trains at a point; gives the very `before` where there is nothing new.

    A speed is noted after `least_steps` (a whole boundary interval, so that its checkpoint is in
    it) and whenever the stretch has become twice as long; a new one begins with every day.

    Args:
        before: what was known.
        point: id of where it trains, at its normal pace.
        at_s: seconds on any clock that goes on.
        tokens: trained so far.
        step: the last one.
        least_steps: from which on a stretch is measured.
        margin: how far speed goes down and up by the hour.
    """
    stay = before.stay
    if stay is None or stay.point != point or tokens < stay.tokens or at_s < stay.at_s:
        return replace(before, stay=Stay(point=point, at_s=at_s, tokens=tokens, step=step))
    steps, seconds = step - stay.step, at_s - stay.at_s
    if steps < max(1, least_steps, 2 * stay.noted) or seconds <= 0.0:
        return before
    seen = MeasuredSpeed(point=point, tokens_per_s=(tokens - stay.tokens) / seconds, steps=steps)
    known = {each.point: each for each in before.speeds}
    known[point] = _better(known.get(point), seen, margin)
    stay = replace(stay, noted=steps)
    if seconds >= DAY_S:
        stay = Stay(point=point, at_s=at_s, tokens=tokens, step=step)
    return SpeedWatch(speeds=tuple(known.values()), stay=stay)


def _better(before: MeasuredSpeed | None, seen: MeasuredSpeed, margin: float) -> MeasuredSpeed:
    """Keep the mean on which more can be counted, unless speed fell by more than the margin."""
    if before is None or seen.tokens_per_s < before.tokens_per_s * (1.0 - margin):
        return seen
    widest = SpeedReserve().assumed
    return max(before, seen, key=lambda each: each.tokens_per_s * (1.0 - widest / sqrt(each.steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSpeed:
    """What a point is counted at, as shares of its catalogue speed.

    Attributes:
        least: counted on. `most`: no run is expected to be faster.
        likely: as measured, or as the catalogue says, less the margin.
        unmeasured: the part of the reserve that measuring takes away, in [0, 1).
    """

    least: float
    most: float
    likely: float
    unmeasured: float = 0.0


def counted(
    points: Sequence[OperatingPoint],
    measured: Sequence[MeasuredSpeed],
    *,
    reserve: SpeedReserve,
    margin: float,
    here: str = "",
    now_tokens_per_s: float | None = None,
) -> Mapping[str, CountedSpeed]:
    """Give what every point is counted at, by its id.

    Args:
        points: of the catalogue.
        measured: by this launch's machines, one for each point at most.
        reserve: of speeds that were not measured.
        margin: of those that were.
        here: id of the point that the run is at; "" when it is at none.
        now_tokens_per_s: what the run does now, over its last steps; None: not known.
    """
    ids = {each.id: each for each in points}
    known = {each.point: each for each in measured if each.point in ids and each.steps > 0}
    now = None if now_tokens_per_s is None or here not in ids else now_tokens_per_s
    at = ids[here].tokens_per_s if here in ids else 0.0
    drift = 1.0 if now is None else max(STANDSTILL, now / at)
    # Slower than its own mean by more than the margin: the machines got slower, all points alike.
    fall = 1.0
    if now is not None and here in known:
        fall = min(1.0, now / (known[here].tokens_per_s * (1.0 - margin)))
    found = {
        each.id: _one(each, known.get(each.id), reserve.of(each), margin, drift=drift, fall=fall)
        for each in points
    }
    return found | _by_clock(points, found)


def _one(
    point: OperatingPoint,
    seen: MeasuredSpeed | None,
    reserve: float,
    margin: float,
    *,
    drift: float,
    fall: float,
) -> CountedSpeed:
    """Give what one point is counted at, whatever its layout's other clocks do."""
    before = (1.0 - reserve) * (1.0 - margin)
    if seen is None:
        return CountedSpeed(
            least=min(before, drift),
            most=1.0 / (1.0 - reserve),
            likely=min(1.0 - margin, drift),
            unmeasured=reserve,
        )
    share = max(STANDSTILL, seen.tokens_per_s / point.tokens_per_s * fall)
    left = reserve / sqrt(seen.steps)
    sure = (1.0 - margin) * (1.0 - left)
    capped = min(share, 1.0)
    return CountedSpeed(
        least=max(capped * sure, min(capped, before)),
        most=share / sure,
        likely=min(1.0 - margin, share),
        unmeasured=left,
    )


def _by_clock(
    points: Sequence[OperatingPoint], found: Mapping[str, CountedSpeed]
) -> dict[str, CountedSpeed]:
    """Count on each point of a layout for as much as on its slower clocks."""
    raised = {}
    ordered = sorted(points, key=lambda each: (str(each.layout), each.tokens_per_s))
    for _, alike in groupby(ordered, key=lambda each: str(each.layout)):
        tokens_per_s = 0.0
        for each in alike:
            one = found[each.id]
            tokens_per_s = max(tokens_per_s, one.least * each.tokens_per_s)
            least = tokens_per_s / each.tokens_per_s
            if least > one.least:
                raised[each.id] = replace(one, least=least, most=max(one.most, least))
    return raised
