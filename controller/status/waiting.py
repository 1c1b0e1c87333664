"""What a run that takes no step waits for, or that it sleeps or is queued, in one sentence. Pure.

Invariant: nothing is said of a run that steps as usual; the sentence always says how long ago each
thing was heard.
"""

from datetime import datetime

from wattmesh.controller.journal.runs.liveness import HEARTBEATS, REPORTING_S
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.status.trouble import span
from wattmesh.reconfig.wire.messages import RunPhase

QUIET_S = 60.0
STEPS = 3.0
"""A run waits once a step takes longer than this many usual ones, and than `QUIET_S`."""

REGISTERED = "registered"


def last_step_s(row: RunRow, now: datetime) -> float | None:
    """Give the seconds since the newest launch last reported a step; None before its first."""
    return max(0.0, (now - row.progress_at).total_seconds()) if row.progress_at else None


def asleep_line(row: RunRow, now: datetime) -> str:
    """Say since when a run sleeps, what wakes it and when, and how to wake it now."""
    if row.asleep_at is None or row.wakes_at is None:
        return ""
    since = span(max(0.0, (now - row.asleep_at).total_seconds()))
    left_s = (row.wakes_at - now).total_seconds()
    holder = row.held_as or "its launcher"
    alarm = f"starts it again in {span(left_s)} ({row.wakes_at:%a %H:%M} UTC) at the latest"
    if left_s <= 0:
        alarm = f"was to start it again {span(-left_s)} ago, and its launch is awaited"
    where = row.point.id if row.point else "POINT"
    return (
        f"Asleep for {since} at step {row.step}; {holder} {alarm}; `wattmesh switch {row.name} "
        f"{where}` wakes it now."
    )


def queued_line(row: RunRow, now: datetime) -> str:
    """Say since when a run waits for another size, who starts it, and when the old size may."""
    if row.wakes_at is None:
        return ""
    since = span(max(0.0, (now - row.last_seen_at).total_seconds()))
    left_s = (row.wakes_at - now).total_seconds()
    back = f"from {row.wakes_at:%a %H:%M} UTC on, in {span(left_s)}, one of the old size may"
    if left_s <= 0:
        back = f"one of the old size may, since {span(-left_s)}"
    return f"Left for another size {since} ago at step {row.step}; {row.held_as} starts it; {back}."


def waits_for(row: RunRow, now: datetime) -> str:
    """Say what a live run has been waiting for, longer than usual; "" where it trains."""
    if row.state != "live" or row.finish_reason:
        return ""
    since_s = last_step_s(row, now)
    if row.observed and since_s is None:
        return ""  # nobody promised to tell steps
    began_s = max(0.0, (now - row.incarnation_at).total_seconds())
    quiet_s = began_s if since_s is None else since_s
    if quiet_s <= max(QUIET_S, STEPS * (row.step_s or 0.0)):
        return ""
    step = (
        f"no step since it was launched {span(began_s)} ago"
        if since_s is None
        else f"last step {span(since_s)} ago"
    )
    if row.protocol < HEARTBEATS:
        return (
            f"{step}; its hook is an older one, which says nothing between two steps: it counts as "
            f"lost after {span(REPORTING_S)}"
        )
    heard_s = max(0.0, (now - row.last_seen_at).total_seconds())
    # A launch that has only registered, or a hook of another version, names no phase of ours.
    known = row.phase if row.phase not in ("", REGISTERED) else RunPhase.STARTING.value
    return f"{step}; the launch answered {span(heard_s)} ago; phase: {known}"
