"""A suspended run: it sleeps while the plan says so, and is woken in every other case. Pure.

Invariant: nothing that is unknown keeps a run asleep (law 7), and the guard wakes it in time for
its deadline whatever the grid or the plan says.
"""

from wattmesh.policies.case import Case
from wattmesh.policies.decision import Action, Decision
from wattmesh.policies.rules.follow import wanted
from wattmesh.policies.words import moment
from wattmesh.policies.words import point as named
from wattmesh.quantities import duration, intensity
from wattmesh.reconfig.catalogue import OperatingPoint


def asleep(case: Case, blind: Decision | None) -> Decision:
    """Decide about a suspended run.

    Args:
        case: the run.
        blind: the hold of a run that trains while grid or power are not seen; None: they are.
    """
    run, guard = case.run, case.guard
    if run.open_switch:
        age = duration(run.open_switch.age_s)
        return _sleep(case, "switching", f"it was woken {age} ago and is {run.open_switch.state}")
    told = _told(case)
    if told is not None:
        return told
    if guard is None:
        kind, why = case.missing if case.missing[0] else ("no_catalogue", "its points are unknown")
        return _wake(case, run.current, kind, why)
    if guard.asleep_slack_s() < 0.0:
        at = moment(run.deadline, case.seen.now) if run.deadline else "unknown"
        return _wake(case, guard.fastest, "deadline", f"the deadline at {at} needs every hour left")
    home = run.current if run.current and guard.may_wake(run.current) else guard.fastest
    if blind is not None:
        why = "what its sleep is for cannot be seen any more; `wattmesh doctor` finds out why"
        return _wake(case, home, blind.kind, why)
    return _planned(case, home)


def _told(case: Case) -> Decision | None:
    """Wake for a person's sake."""
    run = case.run
    ordered = next((each for each in case.menu if each.id == run.ordered_point), None)
    if ordered is not None:
        return _wake(case, ordered, "operator", "an operator ordered it there")
    if case.seen.frozen or run.frozen:
        return _wake(case, run.current, "frozen", "it is frozen, and a frozen run trains on")
    return None


def _planned(case: Case, home: OperatingPoint) -> Decision:
    """Sleep or wake as the plan says; without one wake."""
    step = wanted(case)
    if step is None:
        return _wake(case, home, "no_plan", "there is no fresh plan that wants it asleep")
    grid = intensity(case.seen.carbon.slots[0].g_per_kwh)
    until = moment(step.end, case.seen.now)
    if step.point == "":
        return _sleep(case, "at_target", f"the grid is at {grid} and the plan wakes it at {until}")
    run, policy = case.run, case.seen.policy
    if run.suspended_s is not None and run.suspended_s < policy.dwell_s:
        age = duration(run.suspended_s)
        return _sleep(case, "dwell", f"it sleeps for {age} only; policy.dwell keeps it asleep")
    target = next((each for each in case.menu if each.id == step.point), home)
    if case.guard is not None and not case.guard.may_wake(target):
        target = case.guard.fastest
    return _wake(
        case, target, "plan", f"the grid is at {grid} and the plan keeps it there until {until}"
    )


def _sleep(case: Case, kind: str, why: str) -> Decision:
    """Sleep on."""
    return case.say(Action.HOLD, kind, f"staying suspended: {why}.")


def _wake(case: Case, target: OperatingPoint | None, kind: str, why: str) -> Decision:
    """Wake at `target`, or where it was."""
    where = f" at {named(target)}" if target else ""
    reason = f"resuming{where}: {why}."
    return case.say(Action.RESUME, kind, reason, target=target.id if target else "")
