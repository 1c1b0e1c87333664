"""What an operator ordered: carried out, waited for, or refused with the reason.

An order outranks grams. It is refused where safety or the deadline outranks it: a point nobody
validated, or one at which the guard cannot keep the deadline. It needs no carbon data.

Invariant: while an order cannot be carried out, every cycle says so until it is withdrawn.
"""

from dataclasses import replace

from wattmesh.policies.decision import Decision
from wattmesh.policies.guard import Guard
from wattmesh.policies.menu import why_not
from wattmesh.policies.rules.suspend import ordered_to_sleep
from wattmesh.policies.run_context import RunContext
from wattmesh.quantities import count, duration
from wattmesh.reconfig.catalogue import PAUSED, OperatingPoint


def ordered(context: RunContext) -> Decision | None:
    """Decide about the operator's order; None when there is none."""
    run = context.run
    if not run.ordered_point or run.catalogue is None:
        return None
    return ordered_to_sleep(context) if run.ordered_point == PAUSED else _to_a_point(context)


def _to_a_point(context: RunContext) -> Decision:
    run = context.run
    assert run.catalogue is not None
    known = {point.id: point for point in run.catalogue.points}
    target = known.get(run.ordered_point)
    if target is None:
        return _refused(context, f"its catalogue has no such point, only {', '.join(known)}")
    if run.current is not None and target.id == run.current.id:
        return context.hold("operator", "an operator ordered it here")
    # Who orders it may know that the launcher takes it again.
    asked = replace(run, refused_s=None)
    why = why_not(target, asked, context.seen.policy) or _too_late(context, target)
    if why:
        return _refused(context, why)
    if context.missing[0] == "no_progress":
        return context.hold(
            "no_progress", f"{context.missing[1]}; the order to {target.id} waits for it"
        )
    return context.go("operator", target, f"an operator ordered it{_slack_after(context, target)}")


def _refused(context: RunContext, why: str) -> Decision:
    return context.hold(
        "order_refused", f"the order to {context.run.ordered_point} is refused because {why}"
    )


def _too_late(context: RunContext, target: OperatingPoint) -> str:
    """Say that the deadline would be missed; "" when not, or when the order is faster."""
    guard, current = context.guard, context.run.current
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


def placement_too_late(context: RunContext) -> str:
    """Say that the deadline would be missed by a placement of experts; "" when not."""
    guard, current = context.guard, context.run.current
    if guard is None or current is None or (slack_s := guard.slack_placed_s(current)) >= 0.0:
        return ""
    return (
        f"with {count(guard.tokens_left)} tokens left and the deadline in "
        f"{duration(guard.time_left_s)} the run may end {duration(-slack_s)} late after it"
    )


def _faster(current: OperatingPoint, target: OperatingPoint) -> bool:
    """Say whether the order goes to a faster point, so that it cannot make the run later."""
    return target.tokens_per_s > current.tokens_per_s


def _slack_after(context: RunContext, target: OperatingPoint) -> str:
    """Say what slack the deadline guard has after the order, where it knows."""
    guard: Guard | None = context.guard
    if guard is None:
        return ""
    slack_s = guard.slack_after_s(context.run.current, target)
    if slack_s < 0:
        return f"; the deadline may still be missed by {duration(-slack_s)}"
    return f"; deadline slack is at least {duration(slack_s)} after it"
