"""Puts a run to sleep, and says when its alarm wakes it. Pure.

Whether it may be at all is said in `policies/menu.py`. Invariant: the alarm of a run rings while
every attempt to wake it still keeps the deadline, so that it needs nobody of ours alive.
"""

from datetime import datetime, timedelta
from math import inf

from wattmesh.policies.decision import Action, Decision, PlanStep
from wattmesh.policies.guard import Guard
from wattmesh.policies.menu import cannot_sleep, why_not_sleep
from wattmesh.policies.reason_text import moment
from wattmesh.policies.rules.limits import too_often
from wattmesh.policies.run_context import RunContext
from wattmesh.quantities import duration, intensity
from wattmesh.reconfig.catalogue import PAUSED, OperatingPoint


def suspend(context: RunContext, guard: Guard, current: OperatingPoint, step: PlanStep) -> Decision:
    """Put a run to sleep until the plan's step ends, if settings, guard and limits allow it."""
    why = why_not_sleep(context.run, context.seen.policy)
    if why:
        return context.hold("no_sleep", f"the plan wants it to sleep now, but {why}")
    if not guard.may_suspend(current):
        return context.hold(
            "deadline_guard", "the plan wants it to sleep now, which might miss the deadline"
        )
    found = too_often(context, None)
    if found is not None:
        return context.hold(found[0], f"the plan wants it to sleep now, but {found[1]}")
    wakes_at = alarm(context, current, step.end)
    grid = intensity(context.seen.carbon.slots[0].g_per_kwh)
    return _to_sleep(
        context,
        "plan",
        wakes_at,
        f"the grid is at {grid} and the plan trains on from {moment(step.end, context.seen.now)}",
    )


def ordered_to_sleep(context: RunContext) -> Decision:
    """Carry out, or refuse, an operator's order to sleep, which lasts as long as it may."""
    run, guard, current = context.run, context.guard, context.run.current
    why = cannot_sleep(run, context.seen.policy)
    if not why and guard is not None and current is not None and not guard.may_suspend(current):
        why = f"the deadline in {duration(guard.time_left_s)} might be missed"
    if why or current is None:
        return context.hold("order_refused", f"the order to sleep is refused because {why}")
    if context.missing[0] == "no_progress":
        return context.hold("no_progress", f"{context.missing[1]}; the order to sleep waits for it")
    return _to_sleep(context, "operator", alarm(context, current, None), "an operator ordered it")


def alarm(context: RunContext, current: OperatingPoint, until: datetime | None) -> datetime:
    """Give when the run is to be woken at the latest.

    Args:
        context: the run.
        current: where it is.
        until: when its sleep is over; None: as late as may be.
    """
    now, guard = context.seen.now, context.guard
    slack_s = guard.slack_asleep_s(current) if guard is not None else inf
    longest_s = max(0.0, min(slack_s, context.seen.policy.longest_sleep_s))
    latest = now + timedelta(seconds=longest_s)
    return latest if until is None else min(until, latest)


def _to_sleep(context: RunContext, kind: str, wakes_at: datetime, why: str) -> Decision:
    """Order sleep, unless it would be over before the run can be asleep."""
    run, now, guard = context.run, context.seen.now, context.guard
    asleep_s = (wakes_at - now).total_seconds()
    least_s = 0.0
    if guard is not None and run.current is not None:
        least_s = guard.lag_s(run.current) + guard.times.seconds(run.current, None)
    if asleep_s <= least_s:
        return context.hold(
            "no_slack",
            f"sleep would have to end {duration(asleep_s)} from now, and until it sleeps may take "
            f"{duration(least_s)}",
        )
    return context.say(
        Action.SUSPEND,
        kind,
        f"suspending {context.here} until {moment(wakes_at, now)} at the latest: {why}.",
        target=PAUSED,
        wakes_at=wakes_at,
    )
