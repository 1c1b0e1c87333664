"""Which hours the grid's intensity or price has capped: windows to announce, to take back. Pure.

An hour of UTC is known when slots cover all of it, and belongs to the local day in which it begins.
A trigger names the worst hours of each day, hours at or above a number, or both, and then both must
hold. What is unknown of a day counts as its worst, so doubt only leaves fewer hours to cap; hours
that were announced before, or that an operator took back, count among the worst as well.

Invariant: a window that was announced is never moved or lengthened, and one that has begun is never
touched; so one is announced when no hour ahead can lengthen it, or when its notice allows no later
moment. One that has not begun is taken back with notice, or because nothing is known of it any
more; hysteresis and a pause keep windows from chattering.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo

from wattmesh.policies.powercap.cap_windows import HOUR, Window, choose_windows
from wattmesh.policies.powercap.triggers import (
    CapOrigin,
    CapWindow,
    Response,
    SignalSeries,
    SignalSlot,
    Trigger,
    TriggeredCap,
    TriggerFacts,
    Withdrawal,
)
from wattmesh.policies.reason_text import clause, moment
from wattmesh.quantities import figures, watts

MOST_AHEAD = 4
"""Windows of one trigger that are announced at a time: every cycle plans each over all boards."""

MOVED = 0.1
"""A cap that is a share is taken back when the share means so much more or less by now."""

MILLI = 1000
DAY_HOURS = 26
"""No local day has more."""


def respond(
    trigger: Trigger,
    series: SignalSeries,
    caps: Sequence[TriggeredCap],
    now: datetime,
    *,
    highest_w: float | None,
) -> Response:
    """Say what to announce and what to take back.

    Args:
        trigger: the settings.
        series: its signal.
        caps: what it announced before, from the local day's start on, whatever became of it.
        now: aware.
        highest_w: what all boards may draw while nobody lowers them; None: not known.
    """
    cap_w = _cap_w(trigger, highest_w)
    if series.doubt:
        return holding(trigger.origin, series.doubt, taken_back(caps, now, series.doubt))
    if cap_w is None:
        return holding(
            trigger.origin, "no GPU's power limit is known, and its cap is a share of their sum"
        )
    days = _Days(trigger, known_hours(series.slots), caps)
    withdraw = tuple(_withdrawals(trigger, days, caps, now, cap_w))
    gone = {each.id for each in withdraw}
    standing = [each for each in caps if each.stands and each.until > now and each.id not in gone]
    ahead = sum(each.start > now for each in standing)
    chosen = _chosen(trigger, days, caps, now, ahead=ahead)
    announce = tuple(_window(days, series, span, cap_w) for span in chosen)
    spans = [(each.start, each.until) for each in standing]
    spans += [(each.start, each.until) for each in announce]
    return Response(
        origin=trigger.origin,
        sentence=_sentence(trigger, series, spans, now),
        announce=announce,
        withdraw=withdraw,
    )


def holding(origin: CapOrigin, why: str, withdraw: tuple[Withdrawal, ...] = ()) -> Response:
    """Say that nothing is triggered, and why."""
    return Response(
        origin=origin,
        sentence=f"Demand response by {origin} holds, and triggers no cap: {clause(why)}.",
        withdraw=withdraw,
        held=True,
    )


def resting(origin: CapOrigin, why: str, withdraw: tuple[Withdrawal, ...] = ()) -> Response:
    """Say that nothing is triggered because people want it so."""
    sentence = f"Demand response by {origin} rests: {clause(why)}."
    return Response(origin=origin, sentence=sentence, withdraw=withdraw)


def taken_back(caps: Iterable[TriggeredCap], now: datetime, why: str) -> tuple[Withdrawal, ...]:
    """Take back every window that has not begun."""
    return tuple(
        Withdrawal(id=each.id, why=clause(why)) for each in caps if each.stands and each.start > now
    )


def known_hours(slots: Iterable[SignalSlot]) -> dict[datetime, float]:
    """Give the mean of each hour of UTC that slots cover once and whole, by its start."""
    covered: dict[datetime, timedelta] = {}
    total: dict[datetime, float] = {}
    for slot in slots:
        at = slot.start.astimezone(UTC)
        while at < slot.end:
            hour = at.replace(minute=0, second=0, microsecond=0)
            until = min(slot.end.astimezone(UTC), hour + HOUR)
            covered[hour] = covered.get(hour, timedelta()) + (until - at)
            total[hour] = total.get(hour, 0.0) + slot.value * ((until - at) / HOUR)
            at = until
    return {
        hour: total[hour]
        for hour, length in covered.items()
        if length == HOUR and math.isfinite(total[hour])
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Day:
    """One local day.

    Attributes:
        worst: hours that are among its worst, and not taken.
        threshold: the least value of a worst hour; None: too little of the day is known.
        spread: its highest known value less its lowest.
    """

    worst: frozenset[datetime] = field(default_factory=frozenset)
    threshold: float | None = None
    spread: float = 0.0


class _Days:
    """The hours that are known, by local day; each day is ranked when it is first asked for."""

    def __init__(
        self, trigger: Trigger, hours: Mapping[datetime, float], caps: Sequence[TriggeredCap]
    ) -> None:
        self.hours = hours
        self._trigger = trigger
        # Hours that an operator took back stay taken: no others are capped in their place.
        self._taken = [(each.start, each.until) if each.by_operator else each.held for each in caps]
        self._days: dict[date, _Day] = {}

    def of(self, hour: datetime) -> _Day:
        """Give the day in which an hour begins."""
        day = hour.astimezone(self._trigger.timezone).date()
        if day not in self._days:
            self._days[day] = self._ranked(day)
        return self._days[day]

    def is_bad(self, hour: datetime) -> bool:
        """Say whether an hour may be capped by its value."""
        above, value = self._trigger.above, self.hours[hour]
        if above is not None and value < above:
            return False
        return self._trigger.worst_hours is None or hour in self.of(hour).worst

    def threshold(self, hour: datetime) -> float:
        """Give the value from which on hours count on an hour's day."""
        least = [self._trigger.above, self.of(hour).threshold]
        return max((each for each in least if each is not None), default=math.nan)

    def _ranked(self, day: date) -> _Day:
        most = self._trigger.worst_hours
        every = frozenset(hours_of_day(day, self._trigger.timezone))
        known = {hour: self.hours[hour] for hour in every if hour in self.hours}
        if most is None or not known:
            return _Day()
        ranked = sorted(known, key=lambda hour: (-known[hour], hour))
        unknown = every - known.keys()
        taken = {hour for hour in every if _meets(hour, self._taken)}
        left = max(0, most - len(taken | unknown))
        # Where all hours are alike none is worse than the others.
        free = [hour for hour in ranked if hour not in taken and known[hour] > known[ranked[-1]]]
        place = most - len(unknown)
        return _Day(
            worst=frozenset(free[:left]),
            threshold=known[ranked[min(place, len(ranked)) - 1]] if place > 0 else None,
            spread=known[ranked[0]] - known[ranked[-1]],
        )


def hours_of_day(day: date, timezone: tzinfo) -> Iterable[datetime]:
    """Give the hours of UTC that begin on a local day, 23 to 25 of them, the first first."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=timezone).astimezone(UTC)
    first = midnight.replace(minute=0, second=0, microsecond=0) - HOUR
    several = (first + number * HOUR for number in range(DAY_HOURS + 2))
    return (hour for hour in several if hour.astimezone(timezone).date() == day)


def _cap_w(trigger: Trigger, highest_w: float | None) -> float | None:
    if trigger.cap_w is not None:
        return trigger.cap_w
    if highest_w is None or trigger.cap_share is None:
        return None
    return float(max(1, round(trigger.cap_share * highest_w)))


def _withdrawals(
    trigger: Trigger, days: _Days, caps: Iterable[TriggeredCap], now: datetime, cap_w: float
) -> Iterator[Withdrawal]:
    """Yield the windows that have not begun and are not what they were announced as any more."""
    for each in caps:
        if not each.stands or each.start <= now:
            continue
        hours = [each.start + number * HOUR for number in range((each.until - each.start) // HOUR)]
        if any(hour not in days.hours for hour in hours):
            why = "not all of its hours are known any more"
        elif each.start - now >= timedelta(seconds=trigger.notice_s):
            why = _no_longer_bad(trigger, days, hours)
            why = why or _no_longer_share(trigger, each.cap_w, cap_w)
        else:
            why = ""
        if why:
            yield Withdrawal(id=each.id, why=why)


def _no_longer_share(trigger: Trigger, was_w: float | None, cap_w: float) -> str:
    """Say that a cap is another share of what boards may draw now; "" where it is not.

    Nodes report one after the other: what all may draw was less while only the first had.
    """
    if trigger.cap_w is not None or was_w is None or abs(cap_w - was_w) <= MOVED * was_w:
        return ""
    return f"{figures(trigger.cap_share or 0.0)} of what all GPUs may draw is {watts(cap_w)} by now"


def _no_longer_bad(trigger: Trigger, days: _Days, hours: Sequence[datetime]) -> str:
    """Say why hours need no cap any more, beyond what hysteresis allows; "" when they do."""
    value = _mean(days, hours)
    above, share, most = trigger.above, trigger.hysteresis, trigger.worst_hours
    if above is not None and value < above - share * abs(above):
        return f"{figures(value)} on average is below {figures(above)} by now"
    ranked = [days.of(hour) for hour in hours]
    least = [each.threshold - share * each.spread for each in ranked if each.threshold is not None]
    if len(least) == len(hours) and value < math.fsum(least) / len(least):
        return f"{figures(value)} on average is not among the {most} worst hours of a day by now"
    return ""


def _chosen(
    trigger: Trigger,
    days: _Days,
    caps: Sequence[TriggeredCap],
    now: datetime,
    *,
    ahead: int,
) -> tuple[Window, ...]:
    """Choose windows among the bad hours; `ahead` are announced already."""
    pause = trigger.pause_hours * HOUR
    # One that an operator took back keeps its pause: no other takes its place.
    spans = [(each.start, each.until) if each.by_operator else each.held for each in caps]
    near = [(start - pause, end + pause) for start, end in spans if start < end]
    room = MOST_AHEAD - ahead
    first, last = now + timedelta(seconds=trigger.notice_s), now + trigger.ahead_hours * HOUR
    # Hours behind the last that may begin a window may belong to one, or be kept free by it.
    reach = last + (trigger.longest_hours + trigger.pause_hours) * HOUR
    free = [
        hour
        for hour in days.hours
        if now < hour and first <= hour < reach and not _meets(hour, near)
    ]
    bad = [hour for hour in free if days.is_bad(hour)] if room > 0 else []
    lowest = min(days.hours.values(), default=0.0)
    found = choose_windows(
        {hour: round((days.hours[hour] - lowest) * MILLI) + 1 for hour in bad},
        longest_hours=trigger.longest_hours,
        pause_hours=trigger.pause_hours,
        most=MOST_AHEAD + max(0, room),
    )
    ready = [
        (start, until)
        for start, until in found
        if start < last and (start < first + HOUR or _is_settled(trigger, days, start, until, now))
    ]
    return tuple(ready[: max(0, room)])


def _is_settled(
    trigger: Trigger, days: _Days, start: datetime, until: datetime, now: datetime
) -> bool:
    """Say whether no hour ahead that is not known yet may lengthen a window.

    What is announced is never lengthened, and keeps the hours beside it free: a window announced by
    the first of its hours that comes into view would stay as short as that.
    """
    if until - start < trigger.longest_hours * HOUR and until not in days.hours:
        return False
    if trigger.worst_hours is None:
        return True
    zone = trigger.timezone
    dates = {each.astimezone(zone).date() for each in (start, until - HOUR)}
    whole = (hour for day in dates for hour in hours_of_day(day, zone))
    return all(hour in days.hours for hour in whole if hour > now)


def _window(days: _Days, series: SignalSeries, span: Window, cap_w: float) -> CapWindow:
    start, until = span
    hours = [start + number * HOUR for number in range((until - start) // HOUR)]
    return CapWindow(
        start=start,
        until=until,
        cap_w=cap_w,
        trigger=TriggerFacts(
            signal=series.name,
            unit=series.unit,
            value=_mean(days, hours),
            threshold=min(days.threshold(hour) for hour in hours),
            issued_at=series.issued_at,
        ),
    )


def _mean(days: _Days, hours: Sequence[datetime]) -> float:
    return math.fsum(days.hours[hour] for hour in hours) / len(hours)


def _meets(hour: datetime, spans: Iterable[Window]) -> bool:
    """Say whether an hour and one of the spans have time in common."""
    return any(start < hour + HOUR and hour < end for start, end in spans)


def _sentence(
    trigger: Trigger, series: SignalSeries, spans: Sequence[Window], now: datetime
) -> str:
    """Say what a trigger follows, and which of its caps comes next or holds."""
    sought = []
    if trigger.worst_hours is not None:
        sought.append(f"the {trigger.worst_hours} worst hours of each day")
    if trigger.above is not None:
        sought.append(f"hours at {figures(trigger.above)} {series.unit} or above")
    said = f"Demand response by {trigger.origin} caps {' that are '.join(sought)} ({series.name})"
    left_out = (
        f" {clause(series.note)[:1].upper()}{clause(series.note)[1:]}." if series.note else ""
    )
    if not spans:
        return f"{said}; none is announced now.{left_out}"
    start, until = min(spans)
    others = f" and {len(spans) - 1} more" if len(spans) > 1 else ""
    when = f"from {moment(start, now)} until {moment(until, now)}"
    return f"{said}: {when}{others}.{left_out}"
