"""A suspended run: it sleeps while the plan says so, and is woken in every other case. Pure.

Invariant: nothing that is unknown keeps a run asleep, and the guard wakes it in time for its
deadline whatever the grid or the plan says.
"""

from wattmesh.policies.decision import Action, Decision
from wattmesh.policies.reason_text import moment
from wattmesh.policies.reason_text import point as named
from wattmesh.policies.rules.follow import planned_step
from wattmesh.policies.run_context import RunContext
from wattmesh.quantities import duration, intensity
from wattmesh.reconfig.catalogue import PAUSED, OperatingPoint


def asleep(context: RunContext, blind: Decision | None) -> Decision:
    """Decide about a suspended run.

    Args:
        context: the run.
        blind: the hold of a run that trains while grid or power are not seen; None: they are.
    """
    run, guard = context.run, context.guard
    if run.open_switch:
        age = duration(run.open_switch.age_s)
        return _sleep(
            context, "switching", f"it was woken {age} ago and is {run.open_switch.state}"
        )
    told = _told(context)
    if told is not None:
        return told
    if guard is None:
        kind, why = (
            context.missing if context.missing[0] else ("no_catalogue", "its points are unknown")
        )
        return _wake(context, run.current, kind, why)
    if guard.asleep_slack_s() < 0.0:
        at = moment(run.deadline, context.seen.now) if run.deadline else "unknown"
        return _wake(
            context, guard.fastest, "deadline", f"the deadline at {at} needs every hour left"
        )
    home = run.current if run.current and guard.may_wake(run.current) else guard.fastest
    if blind is not None:
        why = "the grid or the power of its GPUs is not seen any more; `wattmesh doctor` says why"
        return _wake(context, home, blind.kind, why)
    return _planned(context, home)


def _told(context: RunContext) -> Decision | None:
    """Do what a person asked for: wake it at a point, wake it frozen, or let it sleep."""
    run, guard = context.run, context.guard
    ordered = next((each for each in context.menu if each.id == run.ordered_point), None)
    if ordered is not None:
        return _wake(context, ordered, "operator", "an operator ordered it there")
    if context.seen.frozen or run.frozen:
        return _wake(context, run.current, "frozen", "it is frozen, and a frozen run trains on")
    if run.ordered_point == PAUSED and (guard is None or guard.asleep_slack_s() >= 0.0):
        return _sleep(context, "operator", f"an operator ordered it{_until(context)}")
    return None


def _until(context: RunContext) -> str:
    """Say until when its launcher lets it sleep, to end a sentence; "" where that is not known."""
    at = context.run.wakes_at
    return f", until {moment(at, context.seen.now)} at the latest" if at else ""


def _planned(context: RunContext, home: OperatingPoint) -> Decision:
    step = planned_step(context)
    if step is None:
        return _wake(context, home, "no_plan", "there is no fresh plan that wants it asleep")
    grid = intensity(context.seen.carbon.slots[0].g_per_kwh)
    until = moment(step.end, context.seen.now)
    if step.point == "":
        return _sleep(
            context,
            "at_target",
            f"the grid is at {grid} and the plan wakes it at {until}{_until(context)}",
        )
    run, policy = context.run, context.seen.policy
    if run.suspended_s is not None and run.suspended_s < policy.dwell_s:
        age = duration(run.suspended_s)
        return _sleep(
            context, "dwell", f"it has slept for {age} only, and policy.dwell_s is longer"
        )
    target = next((each for each in context.menu if each.id == step.point), home)
    if context.guard is not None and not context.guard.may_wake(target):
        target = context.guard.fastest
    return _wake(
        context, target, "plan", f"the grid is at {grid} and the plan keeps it there until {until}"
    )


def _sleep(context: RunContext, kind: str, why: str) -> Decision:
    return context.say(Action.HOLD, kind, f"staying suspended: {why}.")


def _wake(context: RunContext, target: OperatingPoint | None, kind: str, why: str) -> Decision:
    """Resume at `target`; without one, where it was."""
    where = f" at {named(target)}" if target else ""
    reason = f"resuming{where}: {why}."
    return context.say(Action.RESUME, kind, reason, target=target.id if target else "")
