"""Reads the decision signal from the journal: present slot, forecast, what is wrong. I/O in.

Invariant: what is unknown stays unknown; no intensity is invented to make a decision possible.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.controller.journal.carbon.points import FetchRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.policies.decision import CarbonView, IntensitySlot, Rung
from wattmesh.policies.ladder import ACTS, DAY_S, LadderStanding, stand
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFacts:
    """What the cycle must know about the decision signal beside its points.

    Attributes:
        stale_after_s: if the newest successful fetch is older, nothing is decided for carbon.
        day_s: length of the signal's day; shorter in a compressed recording.
        cadence_s: how often something new can appear; 0: at each interval. `lag_s`: how long after
            its end an interval is usually observed.
    """

    signal: Signal
    interval_s: float
    stale_after_s: float
    day_s: float = DAY_S
    cadence_s: float = 0.0
    lag_s: float = 0.0


def carbon_view(journal: Journal, facts: SignalFacts | None, now: datetime) -> CarbonView:
    """Read the decision signal: the current slot, the forecast, and why it is unusable."""
    fetch = journal.carbon.last_fetch(facts.signal) if facts else None
    return view_after(journal, facts, fetch, now)


def view_after(
    journal: Journal, facts: SignalFacts | None, fetch: FetchRow | None, now: datetime
) -> CarbonView:
    """Read the same where its newest polls, `fetch`, have been read already."""
    if facts is None:
        return CarbonView(signal="", slots=(), age_s=None, trouble="No decision signal is set.")
    ok_at = fetch.ok_at if fetch else None
    # After a clock step back, a recent answer seems to come from the future.
    age_s = max(0.0, (now - ok_at).total_seconds()) if ok_at else None
    point = running_point(journal, facts, now)
    standing = stand(
        journal.forecasts.newest(facts.signal, now),
        running=slot_of(point) if point else None,
        static=point is not None and point.quality is Quality.STATIC,
        now=now,
        day_s=facts.day_s,
    )
    return CarbonView(
        signal=str(facts.signal),
        slots=standing.slots,
        age_s=age_s,
        trouble=_trouble(facts, age_s, standing, fetch.detail if fetch else ""),
        rung=standing.rung,
        source=standing.source,
        forecast=standing.forecast,
        issued_at=standing.issued_at,
        note=standing.why,
        since_change_s=_since_change_s(fetch, standing.rung, now),
        interval_s=facts.interval_s,
        climatology=journal.forecasts.usual(facts.signal),
    )


def running_point(journal: Journal, facts: SignalFacts, now: datetime) -> CarbonPoint | None:
    """Return the observed point of the interval that contains `now`; None if there is none."""
    # That interval began up to one interval length ago.
    begun = now - timedelta(seconds=facts.interval_s)
    points = journal.carbon.observed(facts.signal, begun, now)
    return next((each for each in points if each.start <= now < each.end), None)


def slot_of(point: CarbonPoint) -> IntensitySlot:
    """Convert an observed point to a slot."""
    return IntensitySlot(start=point.start, end=point.end, g_per_kwh=point.g_per_kwh)


def _since_change_s(fetch: FetchRow | None, rung: Rung, now: datetime) -> float | None:
    """Return for how long decisions have rested on this rung; None if it never changed.

    A rung that is not recorded yet begins now.
    """
    if fetch is None or not fetch.rung:
        return None
    if fetch.rung != rung.value:
        return 0.0
    return age_s(fetch.rung_at, now) if fetch.rung_at else None


def _trouble(facts: SignalFacts, age_s: float | None, standing: LadderStanding, detail: str) -> str:
    """Say why the signal cannot carry a decision; "" when it can."""
    why = f" ({detail.rstrip('.')})" if detail else ""
    if age_s is None and standing.rung is Rung.NONE:
        return f"{facts.signal.provider} has not answered yet{why}."
    if age_s is not None and age_s > facts.stale_after_s:
        return (
            f"{facts.signal.provider} was last heard {age_s:.0f} s ago, more than the "
            f"{facts.stale_after_s:.0f} s that count as fresh{why}."
        )
    if standing.rung is Rung.NONE and not standing.slots:
        return f"{facts.signal.provider} gives no value for now{why}."
    if standing.rung not in ACTS:
        return f"{facts.signal.provider}: {standing.why}{why}."
    return ""


def age_s(at: datetime, now: datetime) -> float | None:
    """Return the seconds since `at`; None if `at` is in the future, after a clock step back."""
    return (now - at).total_seconds() if at <= now else None
