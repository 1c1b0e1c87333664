"""What demand response follows: the decision signal or day-ahead prices, in the journal. I/O in.

Fresh follows each provider's own pace: one that tells something new every five minutes is missed
after a quarter of an hour, one that tells it every hour after three hours. An auction is held once
a day and its prices do not age: whoever tells them is missed after a day, and hours that no auction
has priced yet are not known.

Invariant: what is stale, simulated, of a lower rung or estimated beyond what the settings allow is
never a value: it is left out, or it is a doubt about all of it, and says so.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.journal.carbon.exogenous import EXOGENOUS, HOUR, ExogenousValue
from wattmesh.controller.journal.journal import Journal
from wattmesh.policies.decision import CarbonView, Rung
from wattmesh.policies.ladder import DAY_S
from wattmesh.policies.powercap.triggers import (
    ESTIMATED,
    PROFILE,
    SIMULATED,
    DemandSource,
    SignalSeries,
    SignalSlot,
)
from wattmesh.quantities import duration
from wattmesh.telemetry.carbon import signal_quality
from wattmesh.telemetry.exogenous import KINDS, ExogenousKind
from wattmesh.telemetry.readings import Quality

LOOKS_BACK = timedelta(days=2)
"""Of its own caps from then on each counts among the worst hours of a day, or is near another."""

MISSED = 3
"""So many times of its own pace may pass without anything new of a provider."""

AUCTION_EVERY_S = 86_400.0
PRICED_AHEAD = timedelta(days=3)
UNIT = "g/kWh"


def read_series(
    journal: Journal,
    source: DemandSource,
    facts: SignalFacts | None,
    view: CarbonView,
    now: datetime,
) -> SignalSeries:
    """Read what a trigger follows, from the start of the local day on.

    Args:
        journal: what is known.
        source: the trigger.
        facts: the decision signal; None: the settings name none.
        view: what is known of it ahead.
        now: aware.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    if source.prices:
        return _prices(journal, source, now)
    if facts is None:
        return SignalSeries(name="", unit=UNIT, doubt="no decision signal is set")
    name = str(facts.signal)
    if why := _doubt(source, facts, view, now):
        return SignalSeries(name=name, unit=UNIT, doubt=why)
    begin = _day_start(source, now)
    observed = journal.carbon.observed(facts.signal, begin, now)
    # A stand-in is not observed yet: what was forecast of its interval is as good.
    points = [each for each in observed if each.quality is not Quality.PROVISIONAL]
    allowed = {Quality.MEASURED, *((Quality.ESTIMATED,) if ESTIMATED in source.allow else ())}
    first = view.slots[0]
    running = next((each for each in observed if each.start <= first.start < each.end), None)
    ahead = view.slots[1:] if running and running.quality not in allowed else view.slots
    stands_in = running is not None and running.quality is Quality.PROVISIONAL
    past = [
        SignalSlot(start=max(begin, each.start), end=each.end, value=each.g_per_kwh)
        for each in points
        if each.quality in allowed and begin < each.end <= first.start
    ]
    out = sum(each.quality not in allowed for each in points)
    known_until = max((each.end for each in points), default=begin)
    foretold_until = first.end if stands_in else first.start
    return SignalSeries(
        name=name,
        unit=UNIT,
        slots=(
            *past,
            *_foretold(journal, facts, max(begin, known_until), foretold_until),
            *(SignalSlot(start=each.start, end=each.end, value=each.g_per_kwh) for each in ahead),
        ),
        issued_at=view.issued_at,
        note=_left_out(out),
    )


def _left_out(out: int) -> str:
    """Say how many intervals of the day count as not known, as a clause; "" for none."""
    if out == 1:
        return "1 interval of today is estimated and counts as not known"
    return f"{out} intervals of today are estimated and count as not known" if out else ""


def _prices(journal: Journal, source: DemandSource, now: datetime) -> SignalSeries:
    """Read the newest price of each hour; restated ones count from when they were fetched."""
    unit = KINDS[ExogenousKind.PRICE].unit
    name, series = source.prices, f"{EXOGENOUS}{source.prices}"
    fetch = journal.exogenous.last_fetch(series)
    ok_at = fetch.ok_at if fetch else None
    why = f" ({fetch.detail.rstrip('.')})" if fetch and fetch.detail else ""
    if ok_at is None:
        return SignalSeries(name=name, unit=unit, doubt=f"{name} has not answered yet{why}")
    heard_s = max(0.0, (now - ok_at).total_seconds())
    fresh_s = source.stale_after_s or AUCTION_EVERY_S
    if doubt := _unheard(name, heard_s, fresh_s):
        return SignalSeries(name=name, unit=unit, doubt=doubt + why)
    newest: dict[datetime, ExogenousValue] = {}
    begin = _day_start(source, now).astimezone(UTC)
    first = begin.replace(minute=0, second=0, microsecond=0)
    for each in journal.exogenous.between(series, first, now + PRICED_AHEAD):
        known = newest.get(each.start)
        if each.kind is not ExogenousKind.PRICE or each.known_at > now:
            continue
        if known is None or each.known_at >= known.known_at:
            newest[each.start] = each
    ahead = [each.known_at for each in newest.values() if each.start > now]
    if not ahead:
        return SignalSeries(
            name=name, unit=unit, doubt=f"{name} tells no price of the hours ahead{why}"
        )
    return SignalSeries(
        name=name,
        unit=unit,
        slots=tuple(
            SignalSlot(start=start, end=start + HOUR, value=each.value)
            for start, each in sorted(newest.items())
        ),
        issued_at=max(ahead),
    )


def _doubt(source: DemandSource, facts: SignalFacts, view: CarbonView, now: datetime) -> str:
    """Say why nothing may rest on the decision signal, as a clause; "" when it may."""
    if facts.day_s != DAY_S:
        return f"{facts.signal} is a recording that plays faster, and has no hours to cap"
    if signal_quality(str(facts.signal)) and SIMULATED not in source.allow:
        return f'{facts.signal} is a recording (allow = ["{SIMULATED}"])'
    if view.trouble or not view.slots or view.age_s is None or view.issued_at is None:
        return view.trouble or f"nothing is known of the hours ahead of {facts.signal}"
    if view.rung is not Rung.ISSUED and PROFILE not in source.allow:
        return f'only a profile of its past foretells {facts.signal} (allow = ["{PROFILE}"])'
    return _stale(source, facts, view.age_s, (now - view.issued_at).total_seconds())


def _stale(source: DemandSource, facts: SignalFacts, heard_s: float, issued_s: float) -> str:
    """Say that nothing new was told for too long, as a clause; "" when it was."""
    pace_s = MISSED * max(facts.cadence_s, facts.interval_s)
    fresh_s = source.stale_after_s or pace_s
    if doubt := _unheard(facts.signal.provider, heard_s, fresh_s):
        return doubt
    oldest_s = fresh_s + facts.lag_s
    if issued_s > oldest_s:
        return (
            f"the newest forecast of {facts.signal} is {duration(issued_s)} old, more than the "
            f"{duration(oldest_s)} that count as fresh"
        )
    return ""


def _unheard(who: str, heard_s: float, fresh_s: float) -> str:
    """Say that somebody was last heard too long ago, as a clause; "" when not."""
    if heard_s <= fresh_s:
        return ""
    return (
        f"{who} was last heard {duration(heard_s)} ago, more than the {duration(fresh_s)} that "
        "count as fresh"
    )


def _day_start(source: DemandSource, now: datetime) -> datetime:
    local = now.astimezone(source.trigger.timezone)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight.astimezone(now.tzinfo)


def _foretold(
    journal: Journal, facts: SignalFacts, start: datetime, end: datetime
) -> Iterator[SignalSlot]:
    """Yield what was forecast of the time that is over and not observed yet, without a gap."""
    at = start
    while at < end:
        found = journal.forecasts.expected(facts.signal, at)
        if found is None:
            return
        for slot in found[1].slots:
            if slot.start <= at < slot.end and at < end:
                until = min(slot.end, end)
                yield SignalSlot(start=at, end=until, value=slot.g_per_kwh)
                at = until
