"""A budget as a curve: what may be spent by when, how fast it burns, where it ends. Pure.

The plan of a period spreads its limit over the hours in proportion to expected intensity x expected
power, so an hour of a dirty evening may cost more than one of a clean noon. Burn is what was spent
over what the plan had in the same window; a run that follows the plan burns 1 at any hour.

Invariant: the hours of a curve add up to its limit, to the microgram; a window that was not tracked
or not planned from end to end has no burn, never 0. A budget alerts; it decides nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import accumulate, pairwise
from math import sqrt
from statistics import fmean, stdev
from zoneinfo import ZoneInfo

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)

RATE_WINDOW = timedelta(days=7)
"""The burn of so many days, at most, is carried on to the end of the period."""

MOST_DAYS = 14
FEWEST_DAYS = 3
"""The band rests on the burns of so many whole days; fewer say nothing of how they vary."""

T90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372, 1.363, 1.356, 1.350)
"""90 % quantile of Student's t for 1 to 13 degrees of freedom: the two ends of an 80 % band."""


class Alert(StrEnum):
    """What is wrong with a budget, if anything."""

    NONE = ""
    SLOW = "slow"
    FAST = "fast"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRule:
    """An alert: both windows must burn faster than `above`.

    The long one so that it matters, the short one so that it ends soon after its cause has.
    """

    alert: Alert
    windows: tuple[timedelta, timedelta]
    above: float


BURN_RULES = (
    BurnRule(alert=Alert.FAST, windows=(timedelta(hours=6), DAY), above=2.0),
    BurnRule(alert=Alert.SLOW, windows=(3 * DAY, 7 * DAY), above=1.0),
)
"""Of burn alerts in the shape of service levels (Site Reliability Workbook, chapter 5), with longer
windows: a constant load burns 0.5 to 1.4 within a day without any fault (docs/reports.md)."""

ROUNDING = 1.001
"""A burn above its threshold by less is none: the hours of a plan are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourProfile:
    """A quantity by hour of the day, apart for working days and weekends, in the site's time.

    Attributes:
        values: 48 numbers >= 0: the hours of a working day, then those of a day of the weekend.
    """

    values: tuple[float, ...]
    timezone: str

    def at(self, moment: datetime) -> float:
        """Give what is expected in the hour of `moment`."""
        return self.values[_cell(moment, ZoneInfo(self.timezone))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Grams of one stretch of time.

    Attributes:
        unpriced_mj: joules in it that have no grams (yet).
        restated_ug: how much revised intensities changed of what was first reported.
        upper_ug: the most that was emitted beyond `carbon_ug` while nobody measured.
        unbounded_mj: joules of that most which have no grams (yet).
    """

    start: datetime
    end: datetime
    carbon_ug: int
    unpriced_mj: int = 0
    restated_ug: int = 0
    upper_ug: int = 0
    unbounded_mj: int = 0

    def plus(self, other: "Spending") -> "Spending":
        """Add what another run spent in the same stretch."""
        return replace(
            self,
            carbon_ug=self.carbon_ug + other.carbon_ug,
            unpriced_mj=self.unpriced_mj + other.unpriced_mj,
            restated_ug=self.restated_ug + other.restated_ug,
            upper_ug=self.upper_ug + other.upper_ug,
            unbounded_mj=self.unbounded_mj + other.unbounded_mj,
        )

    def at_most(self) -> "Spending":
        """Give the same with what nobody measured counted at the most it can have been."""
        return replace(self, carbon_ug=self.carbon_ug + self.upper_ug, upper_ug=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What may be spent by when.

    Attributes:
        start, end: the period.
        sums_ug: micrograms planned by the end of each hour from `start`, from 0 to the limit; the
            last hour may be shorter.
    """

    start: datetime
    end: datetime
    sums_ug: tuple[int, ...]

    @property
    def limit_ug(self) -> int:
        """Everything that may be spent."""
        return self.sums_ug[-1]

    def by(self, moment: datetime) -> float:
        """Give the micrograms planned from the start up to `moment`; even within an hour."""
        if moment >= self.end:
            return float(self.limit_ug)
        if moment <= self.start:
            return 0.0
        index = (moment - self.start) // HOUR
        begun = self.start + index * HOUR
        part = (moment - begun) / (min(begun + HOUR, self.end) - begun)
        return self.sums_ug[index] + (self.sums_ug[index + 1] - self.sums_ug[index]) * part

    def when(self, carbon_ug: float) -> datetime | None:
        """Give the moment by which so much is planned; None when the plan ends with less."""
        if carbon_ug > self.limit_ug:
            return None
        index = max(0, bisect_right(self.sums_ug, carbon_ug) - 1)
        if index + 1 >= len(self.sums_ug):
            return self.end
        begun = self.start + index * HOUR
        planned_ug = self.sums_ug[index + 1] - self.sums_ug[index]
        part = (carbon_ug - self.sums_ug[index]) / planned_ug
        return begun + part * (min(begun + HOUR, self.end) - begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """How fast a budget burnt in the newest `window`; None where that is not known."""

    window: timedelta
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCourse:
    """Where a budget stands and where it goes.

    Attributes:
        spent_ug: known micrograms of the period; `residual_ug`: the limit less these, may be < 0.
        expected_ug: what the plan has by now.
        on_course_ug: at the end, when it burns on as in the newest days; None too early.
        low_ug, high_ug: the 80 % band of that; None before three whole days.
        exhausted_at: when the limit was, or on this course will be, reached; None: not in the
            period, or not known.
        unkeepable: even the cheapest way to do what must be done ends above the limit.
    """

    spent_ug: int
    residual_ug: int
    expected_ug: float
    burns: tuple[Burn, ...]
    alert: Alert
    on_course_ug: float | None
    low_ug: float | None
    high_ug: float | None
    exhausted_at: datetime | None
    unkeepable: bool = False


def hour_profile(samples: Iterable[tuple[datetime, float]], timezone: str) -> HourProfile | None:
    """Average samples by hour and kind of day; None without any.

    An hour without samples takes the mean of that hour on the other kind of day, else of all.

    Args:
        samples: (moment, value >= 0), in any order.
        timezone: of the site, whose people and machines follow its clocks.
    """
    cells: list[list[float]] = [[] for _ in range(48)]
    zone = ZoneInfo(timezone)
    for moment, value in samples:
        cells[_cell(moment, zone)].append(value)
    known = [value for cell in cells for value in cell]
    if not known:
        return None
    values = tuple(
        fmean(cell or cells[(index + 24) % 48] or known) for index, cell in enumerate(cells)
    )
    return HourProfile(values=values, timezone=timezone)


def spread(
    start: datetime,
    end: datetime,
    limit_ug: int,
    *,
    intensity: HourProfile | None = None,
    power: HourProfile | None = None,
    spent: Sequence[Spending] = (),
    now: datetime | None = None,
) -> Curve:
    """Spread a limit over the hours of a period by expected intensity x expected power.

    Args:
        start: of the period.
        end: of the period; a month of 31 days in which clocks change has 743 or 745 hours.
        limit_ug: whole micrograms, > 0.
        intensity: expected, in any unit, for only its shape matters; None: even.
        power: likewise.
        spent: read with `now` only.
        now: to plan anew in the middle: hours before it take what was spent in them, and what is
            left of the limit is spread over the rest.
    """
    hours = hours_of(start, end)
    passed = 0 if now is None else sum(until <= now for _, until in hours)
    sums = [0, *accumulate(round(spent_between(spent, *hour)) for hour in hours[:passed])]
    weights = [
        round((intensity.at(at) if intensity else 1.0) * 1000)
        * round((power.at(at) if power else 1.0) * 1000)
        * ((until - at) // timedelta(milliseconds=1))
        for at, until in hours[passed:]
    ]
    due = list(accumulate(weights if any(weights) else [1] * len(weights)))
    begun_ug = sums[-1]
    sums += [begun_ug + (limit_ug - begun_ug) * each // due[-1] for each in due]
    return Curve(start=start, end=end, sums_ug=tuple(sums))


def hours_of(start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Cut a period into hours from its start; the last one may be shorter."""
    count = -((start - end) // HOUR)
    borders = [start + number * HOUR for number in range(count)]
    return list(pairwise((*borders, end)))


def spent_between(spent: Iterable[Spending], start: datetime, end: datetime) -> float:
    """Sum micrograms in [start, end); of a stretch that lies partly in it, its share by time."""
    found = 0.0
    for each in spent:
        inside = min(each.end, end) - max(each.start, start)
        if inside > timedelta():
            found += each.carbon_ug * (inside / (each.end - each.start))
    return found


def planned_between(curves: Iterable[Curve], start: datetime, end: datetime) -> float | None:
    """Sum what curves of periods that follow each other have in [start, end).

    None unless they cover all of it.
    """
    found, covered = 0.0, timedelta()
    for curve in curves:
        inside = min(curve.end, end) - max(curve.start, start)
        if inside > timedelta():
            found += curve.by(min(curve.end, end)) - curve.by(max(curve.start, start))
            covered += inside
    return found if covered >= end - start - MICROSECOND else None


def burn(
    curves: Sequence[Curve], spent: Sequence[Spending], start: datetime, end: datetime
) -> float | None:
    """Give what was spent in a window over what was planned; None where that is not known.

    Time before the first stretch was not tracked: that is unknown, not nothing.
    """
    planned = planned_between(curves, start, end)
    if not planned or not spent or spent[0].start > start:
        return None
    return spent_between(spent, start, end) / planned


def budget_course(
    curve: Curve,
    before: Sequence[Curve],
    spent: Sequence[Spending],
    now: datetime,
    *,
    least_ug: float = 0.0,
) -> BudgetCourse:
    """Say where a budget stands.

    Args:
        curve: the newest plan of the running period.
        before: plans of earlier periods, so that windows reach over the border.
        spent: in time order, from the older of the period's start and 14 days ago up to `now`.
        now: within the period.
        least_ug: a lower bound on what must still be spent in the period, e.g. of deadlines.
    """
    curves = (*before, curve)
    in_period = [each for each in spent if curve.start <= each.start < curve.end]
    spent_ug = sum(each.carbon_ug for each in in_period)
    burns = tuple(
        Burn(window=window, ratio=burn(curves, spent, now - window, now))
        for rule in BURN_RULES
        for window in rule.windows
    )
    ratio = _rate(curves, spent, now)
    left_ug = curve.limit_ug - curve.by(now)
    course_ug = None if ratio is None else spent_ug + ratio * left_ug
    half = _half_band(curves, spent, now, curve.end)
    low_ug = high_ug = None
    if course_ug is not None and half is not None:
        low_ug = max(float(spent_ug), course_ug - half * left_ug)
        high_ug = course_ug + half * left_ug
    return BudgetCourse(
        spent_ug=spent_ug,
        residual_ug=curve.limit_ug - spent_ug,
        expected_ug=curve.by(now),
        burns=burns,
        alert=_alert(curve, spent_ug, course_ug, burns),
        on_course_ug=course_ug,
        low_ug=low_ug,
        high_ug=high_ug,
        exhausted_at=_exhausted_at(curve, in_period, ratio, now),
        unkeepable=spent_ug + least_ug > curve.limit_ug,
    )


def _cell(moment: datetime, zone: ZoneInfo) -> int:
    """Give the index of a moment's hour in a profile."""
    local = moment.astimezone(zone)
    return local.hour + (24 if local.weekday() >= 5 else 0)


def _rate(curves: Sequence[Curve], spent: Sequence[Spending], now: datetime) -> float | None:
    """Give the burn of the newest days, as far as they were tracked and planned; None too early."""
    if not spent:
        return None
    start = max(spent[0].start, now - RATE_WINDOW, min(each.start for each in curves))
    return burn(curves, spent, start, now) if now - start >= HOUR else None


def _half_band(
    curves: Sequence[Curve], spent: Sequence[Spending], now: datetime, end: datetime
) -> float | None:
    """Give half the width of the 80 % band, as a burn; None before enough days have passed.

    Burns of whole days are taken as independent draws of one spread: the mean of the m days to
    come lies within t90 x s x sqrt(1/n + 1/m) of the mean of the n days that were.
    """
    days: list[float] = []
    for number in range(MOST_DAYS):
        ratio = burn(curves, spent, now - (number + 1) * DAY, now - number * DAY)
        if ratio is None:
            break
        days.append(ratio)
    if len(days) < FEWEST_DAYS:
        return None
    to_come = max(1.0, (end - now) / DAY)
    return T90[len(days) - 2] * stdev(days) * sqrt(1 / len(days) + 1 / to_come)


def _alert(curve: Curve, spent_ug: int, course_ug: float | None, burns: Sequence[Burn]) -> Alert:
    """Give the most urgent alert; a burn that still ends below the limit is none."""
    if spent_ug > curve.limit_ug:
        return Alert.EXHAUSTED
    if course_ug is None or course_ug <= curve.limit_ug:
        return Alert.NONE
    ratios = {each.window: each.ratio or 0.0 for each in burns}
    for rule in BURN_RULES:
        if all(ratios[window] > rule.above * ROUNDING for window in rule.windows):
            return rule.alert
    return Alert.NONE


def _exhausted_at(
    curve: Curve, spent: Sequence[Spending], ratio: float | None, now: datetime
) -> datetime | None:
    """Give when the limit was, or will be, reached; None when it lasts, or nobody knows."""
    sums = list(accumulate(each.carbon_ug for each in spent))
    if sums and sums[-1] > curve.limit_ug:
        return spent[bisect_right(sums, curve.limit_ug)].end
    if not ratio:
        return None
    left_ug = curve.limit_ug - (sums[-1] if sums else 0)
    return curve.when(curve.by(now) + left_ug / ratio)
