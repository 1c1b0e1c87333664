"""What the grid will emit from now on: the provider's forecast and our own, weighed by skill. Pure.

    predicted = predict(observed, now=now, hours=72, issued=issued, skill=skill)
    predicted.slots       hours from the running one on, each with its 10 % and 90 % quantiles
    skill = scored(skill, earlier, observed)      once new values are in

Without measured skill the provider's forecast is believed as it is, and our own (learned.py) where
there is none; with it, each lead takes every source that was scored, the better the more. Numpy is
loaded at the first own forecast, not with this module: a daemon whose provider forecasts never
needs it.

Invariant: a prediction depends on nothing that was not known at `now`; its slots have no gap; what
a source does not say is taken from the next one, never made up.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.forecast.anchored import anchored_profile
from wattmesh.policies.forecast.series import DAY_S, HOUR_S, Observed
from wattmesh.policies.forecast.skill import ForecastOutcome, ForecastSource, Skill

MOST_HOURS = 168.0
STALE = timedelta(hours=72)
"""History that ends longer ago than this says nothing about the coming hours."""
ENOUGH = 24.0
"""Outcomes in a lead bucket before a source is weighed by them: a day of hourly ones."""
SHARPNESS = 6.0
"""A source with twice the error has 2^-6 of the weight: close to taking the best one alone."""
BAND = 1.61
"""Half the width of an 80 % band in mean absolute errors when they are Laplace's: ln 5."""
ORDER = (
    ForecastSource.ISSUED,
    ForecastSource.EXOGENOUS,
    ForecastSource.OWN,
    ForecastSource.PROFILE,
    ForecastSource.DAY,
    ForecastSource.LAST,
)
"""Who is believed when nothing was scored, first to last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedForecast:
    """A provider's forecast: slots in order, without gaps, quantiles where it tells them."""

    slots: tuple[IntensitySlot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedIntensity:
    """Intensity from now on.

    Attributes:
        slots: without gaps, the first holds `now`; empty when no source knows anything.
        source: what the first slots rest on most.
        made_of: per slot, the share of each source; shares add up to one.
        each: what every source alone said per slot, NaN where nothing; skill is scored on it.
        known_until: where the observed values ended; leads are counted from there.
    """

    slots: tuple[IntensitySlot, ...] = ()
    source: ForecastSource | None = None
    made_of: tuple[Mapping[ForecastSource, float], ...] = ()
    each: Mapping[ForecastSource, tuple[float, ...]] = field(default_factory=dict)
    known_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceSlots:
    """The value and quantiles of one source per slot; NaN where it has none."""

    g_per_kwh: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


class Lessons(Protocol):
    """What a series taught (learned.py); opaque here, so that numpy stays out."""

    def expect(self, values: Sequence[float], clock: int) -> Sequence[Sequence[float]]:
        """Give value, 10 % and 90 % quantile of the hours that follow `values`."""
        ...


def teach(observed: Observed) -> Lessons | None:
    """Learn from a series what `predict` may use for a day; None when it is too short for that."""
    # Numpy costs start time and memory that a daemon whose provider forecasts never needs.
    from wattmesh.policies.forecast.learned import learn  # noqa: PLC0415

    known = observed.coarse()
    return learn(known.values, known.start.hour) if known.interval_s == HOUR_S else None


def predict(
    observed: Observed,
    *,
    now: datetime,
    hours: float,
    issued: IssuedForecast | None = None,
    skill: Skill | None = None,
    lessons: Lessons | None = None,
    exogenous: Sequence[Sequence[float]] | None = None,
) -> PredictedIntensity:
    """Say what the grid will emit in the `hours` that follow `now`.

    Args:
        observed: what is known; values after `now` must not be in it, 60 days or more are best,
            one day is the least for an own forecast.
        now: aware UTC; values may end up to 72 h before it.
        hours: how far to look, in (0, 168].
        issued: the provider's newest forecast, if it offers one.
        skill: what was measured of the sources so far.
        lessons: what `teach` learned from the same series at most a day or so ago; learned anew
            from `observed` when not given, which is most of the work.
        exogenous: what `Foresight.expect` said of the hours that follow `observed`, hourly.

    Returns:
        Slots of an hour (of an interval, where that is longer), each starting whole steps after
        the last observed interval; as far as an unbroken row of sources reaches.
    """
    if not 0 < hours <= MOST_HOURS:
        raise ValueError(f"hours must be in (0, {MOST_HOURS:g}], not {hours:g}")
    known = observed.coarse()
    step = timedelta(seconds=known.interval_s)
    skipped = max(0, (now - known.end) // step)
    first = known.end + skipped * step
    count = max(1, math.ceil((now + timedelta(hours=hours) - first) / step))
    starts = [first + at * step for at in range(count)]
    by_source: dict[ForecastSource, _SourceSlots] = {}
    if now - known.end <= STALE:
        by_source = _own_sources(observed, known, skipped, count)
        own = _learned_source(known, skipped, skipped + count, lessons or teach(observed))
        by_source.update({} if own is None else {ForecastSource.OWN: own})
    if exogenous is not None and known.interval_s == HOUR_S:
        by_source[ForecastSource.EXOGENOUS] = _exogenous_source(exogenous, skipped, count)
    if issued is not None:
        by_source[ForecastSource.ISSUED] = _issued_source(issued.slots, starts, step)
    slots, made_of = _blended(by_source, starts, step, known.end, skill or Skill())
    return PredictedIntensity(
        slots=slots,
        source=max(made_of[0], key=made_of[0].__getitem__) if made_of else None,
        made_of=made_of,
        each={source: tuple(one.g_per_kwh) for source, one in by_source.items()},
        known_until=known.end,
    )


def scored(skill: Skill, earlier: Iterable[PredictedIntensity], observed: Observed) -> Skill:
    """Count what earlier predictions said about the hours that became known since `skill.at`.

    Call it whenever `observed` has grown, with the predictions of the last 72 h (one an hour is
    enough): each hour is then counted once for each of them.
    """
    outcomes = [
        outcome for predicted in earlier for outcome in _outcomes(predicted, observed, skill.at)
    ]
    return skill.after(outcomes, at=observed.end)


def _outcomes(
    predicted: PredictedIntensity, observed: Observed, since: datetime | None
) -> Iterable[ForecastOutcome]:
    last = predicted.each.get(ForecastSource.LAST, ())
    day = predicted.each.get(ForecastSource.DAY, ())
    if predicted.known_until is None or not last or not day:
        return
    for at, slot in enumerate(predicted.slots):
        if slot.end > observed.end or (since is not None and slot.end <= since):
            continue
        value = observed.mean(slot.start, slot.end)
        for source, said in predicted.each.items():
            yield ForecastOutcome(
                source=source,
                lead_h=(slot.end - predicted.known_until) / timedelta(hours=1),
                expected_g_per_kwh=said[at],
                observed_g_per_kwh=value,
                last_g_per_kwh=last[at],
                day_g_per_kwh=day[at],
            )


def _own_sources(
    observed: Observed, known: Observed, skipped: int, count: int
) -> dict[ForecastSource, _SourceSlots]:
    """Give the sources that need the observed values alone."""
    steps = skipped + count
    per_day = round(DAY_S / known.interval_s)
    by_source: dict[ForecastSource, _SourceSlots] = {}
    last = observed.last_g_per_kwh
    if not math.isnan(last):
        by_source[ForecastSource.LAST] = _plain([last] * count)
    day = known.values[-per_day:]
    if len(day) == per_day:
        by_source[ForecastSource.DAY] = _plain([day[at % per_day] for at in range(skipped, steps)])
    profile = anchored_profile(known.values, steps=steps, per_day=per_day)
    if profile is not None:
        by_source[ForecastSource.PROFILE] = _plain(profile[skipped:])
    return by_source


def _learned_source(
    known: Observed, skipped: int, steps: int, lessons: Lessons | None
) -> _SourceSlots | None:
    if lessons is None:
        return None
    told = lessons.expect(known.values, known.start.hour)
    value, low, high = (_further(row, steps)[skipped:] for row in told)
    return _SourceSlots(g_per_kwh=value, low=low, high=high)


def _exogenous_source(told: Sequence[Sequence[float]], skipped: int, count: int) -> _SourceSlots:
    """Cut it to the slots; beyond its reach nothing is said."""
    nothing = [math.nan] * (skipped + count)
    value, low, high = ([*row, *nothing][skipped : skipped + count] for row in told)
    return _SourceSlots(g_per_kwh=value, low=low, high=high)


def _further(values: Sequence[float], steps: int) -> list[float]:
    """Repeat the values of the last day where more is asked for than was forecast."""
    day = values[-24:]
    return [values[at] if at < len(values) else day[at % 24] for at in range(steps)]


def _plain(values: Sequence[float]) -> _SourceSlots:
    unknown = [math.nan] * len(values)
    return _SourceSlots(g_per_kwh=values, low=unknown, high=unknown)


def _issued_source(
    slots: Sequence[IntensitySlot], starts: Sequence[datetime], step: timedelta
) -> _SourceSlots:
    """Cut a provider's forecast to our hours; an hour that it does not fill is NaN."""
    told = [_mean_slot(slots, start, start + step) for start in starts]
    return _SourceSlots(
        g_per_kwh=[value for value, _, _ in told],
        low=[low for _, low, _ in told],
        high=[high for _, _, high in told],
    )


def _mean_slot(
    slots: Sequence[IntensitySlot], start: datetime, end: datetime
) -> tuple[float, float, float]:
    covered = timedelta()
    value = low = high = 0.0
    for slot in slots:
        share = min(slot.end, end) - max(slot.start, start)
        if share <= timedelta():
            continue
        covered += share
        weight = share / (end - start)
        value += weight * slot.g_per_kwh
        low += weight * (math.nan if slot.low_g_per_kwh is None else slot.low_g_per_kwh)
        high += weight * (math.nan if slot.high_g_per_kwh is None else slot.high_g_per_kwh)
    return (value, low, high) if covered == end - start else (math.nan, math.nan, math.nan)


def _blended(
    by_source: Mapping[ForecastSource, _SourceSlots],
    starts: Sequence[datetime],
    step: timedelta,
    known_until: datetime,
    skill: Skill,
) -> tuple[tuple[IntensitySlot, ...], tuple[Mapping[ForecastSource, float], ...]]:
    """Mix the sources slot by slot, as far as any reaches: the slots, and each source's share."""
    slots: list[IntensitySlot] = []
    made_of: list[Mapping[ForecastSource, float]] = []
    for at, start in enumerate(starts):
        lead_h = (start + step - known_until) / timedelta(hours=1)
        shares = _shares(by_source, at, lead_h, skill)
        if not shares:
            break
        value, low, high = _mixed(by_source, shares, at, lead_h, skill)
        slots.append(
            IntensitySlot(
                start=start,
                end=start + step,
                g_per_kwh=value,
                low_g_per_kwh=low,
                high_g_per_kwh=high,
            )
        )
        made_of.append(shares)
    return tuple(slots), tuple(made_of)


def _shares(
    by_source: Mapping[ForecastSource, _SourceSlots], at: int, lead_h: float, skill: Skill
) -> dict[ForecastSource, float]:
    """Weigh the sources that have a value for a slot; empty when none has."""
    telling = [
        source
        for source in ORDER
        if source in by_source and not math.isnan(by_source[source].g_per_kwh[at])
    ]
    if not telling:
        return {}
    errors = {
        source: ratio
        for source in telling
        if (ratio := skill.tally(source, lead_h).against_day) is not None
        and skill.tally(source, lead_h).weight >= ENOUGH
    }
    if telling[0] not in errors:
        return {telling[0]: 1.0}
    least = max(min(errors.values()), 1e-9)
    weights = {
        source: (max(error, least) / least) ** -SHARPNESS for source, error in errors.items()
    }
    total = sum(weights.values())
    return {source: weight / total for source, weight in weights.items()}


def _mixed(
    by_source: Mapping[ForecastSource, _SourceSlots],
    shares: Mapping[ForecastSource, float],
    at: int,
    lead_h: float,
    skill: Skill,
) -> tuple[float, float | None, float | None]:
    """Mix the value and the quantiles of one slot by the same shares."""
    value = sum(share * by_source[source].g_per_kwh[at] for source, share in shares.items())
    below = above = 0.0
    for source, share in shares.items():
        one = by_source[source]
        error = skill.tally(source, lead_h).mean_error_g_per_kwh
        band = math.nan if error is None else BAND * error
        low, high = one.low[at], one.high[at]
        below += share * (band if math.isnan(low) else one.g_per_kwh[at] - low)
        above += share * (band if math.isnan(high) else high - one.g_per_kwh[at])
    if math.isnan(below) or math.isnan(above):
        return value, None, None
    return value, max(0.0, value - below), value + above
