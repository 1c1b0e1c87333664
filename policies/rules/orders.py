"""What an operator ordered: carried out, waited for, or refused with the reason.

An order outranks grams, and is refused where safety or the deadline outrank it: a point nobody
validated, or one at which the guard cannot keep the deadline. It needs no carbon data.
Invariant: an order that cannot be carried out is said so in every cycle until it is withdrawn.
"""

from wattmesh.policies.case import Case
from wattmesh.policies.decision import Decision
from wattmesh.policies.guard import Guard
from wattmesh.policies.menu import why_not
from wattmesh.quantities import count, duration
from wattmesh.reconfig.catalogue import OperatingPoint


def ordered(case: Case) -> Decision | None:
    """Decide about the operator's order; None when there is none."""
    run = case.run
    if not run.ordered_point or run.catalogue is None:
        return None
    known = {point.id: point for point in run.catalogue.points}
    target = known.get(run.ordered_point)
    if target is None:
        return _refused(case, f"its catalogue has no such point, only {', '.join(known)}")
    if run.current is not None and target.id == run.current.id:
        return case.hold("operator", "an operator ordered it here")
    why = why_not(target, run, case.seen.policy) or _too_late(case, target)
    if why:
        return _refused(case, why)
    if case.missing[0] == "no_progress":
        return case.hold("no_progress", f"{case.missing[1]}; the order to {target.id} waits for it")
    return case.go("operator", target, f"an operator ordered it{_slack_after(case, target)}")


def _refused(case: Case, why: str) -> Decision:
    """Refuse an order."""
    return case.hold(
        "order_refused", f"the order to {case.run.ordered_point} is refused because {why}"
    )


def _too_late(case: Case, target: OperatingPoint) -> str:
    """Say that the deadline would be missed; "" when not, or when faster is all one can do."""
    guard, current = case.guard, case.run.current
    if guard is None or guard.may_go(current, target):
        return ""
    if current is not None and not guard.may_stay(current) and _faster(current, target):
        return ""
    if not guard.returns_from(target):
        return (
            "it gives GPUs back, and nobody measured how long it takes until they are there again "
            "(switch.reacquire_s)"
        )
    return (
        f"with {count(guard.tokens_left)} tokens left and the deadline in "
        f"{duration(guard.time_left_s)} the run may end "
        f"{duration(-guard.slack_after_s(current, target))} late there"
    )


def _faster(current: OperatingPoint, target: OperatingPoint) -> bool:
    """Say whether an order cannot make a run later than it is going to be."""
    return target.tokens_per_s > current.tokens_per_s


def _slack_after(case: Case, target: OperatingPoint) -> str:
    """Say what the deadline guard has to spare afterwards, if anything is known about it."""
    guard: Guard | None = case.guard
    if guard is None:
        return ""
    slack_s = guard.slack_after_s(case.run.current, target)
    if slack_s < 0:
        return f"; the deadline may still be missed by {duration(-slack_s)}"
    return f"; deadline slack is at least {duration(slack_s)} after it"
