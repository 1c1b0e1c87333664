"""Before a run leaves its fastest point for one too slow to be in time: measure the fastest. Pure.

Until steps were measured at a point a quarter of its speed, or more, is kept in reserve
(`policies/speed.py`). A run that goes to sleep before its way back was ever measured is woken by
the deadline guard hours before the plan wanted it; a boundary interval at the fastest point takes
most of that reserve away (docs/decisions/0064-measure-before-leaving.md has the figures).

It waits only where a plan uses time that the reserve keeps free, and where measuring takes less.

Invariant: it only ever holds a run at the fastest point of its menu, so it cannot cost a deadline.
"""

from wattmesh.policies.decision import Decision
from wattmesh.policies.guard import Guard
from wattmesh.policies.run_context import RunContext
from wattmesh.quantities import duration, figures
from wattmesh.reconfig.catalogue import OperatingPoint

ENOUGH = 0.08
"""Reserve of the fastest point at which a run may leave it: of 25 % this is left by ten steps."""

INTERVALS = 2
"""Boundary intervals until a speed is noted: the stretch begins with the next boundary."""


def measure_first(
    context: RunContext, guard: Guard, current: OperatingPoint, target: OperatingPoint | None
) -> Decision | None:
    """Hold at the fastest point until it is measured; None where that is so, or not worth waiting.

    Args:
        context: the run.
        guard: of the run.
        current: where it is.
        target: where the plan wants it; None: asleep.
    """
    if any(each.tokens_per_s > current.tokens_per_s for each in context.menu):
        return None
    if target is not None and guard.tokens_left <= target.tokens_per_s * guard.usable_s:
        return None  # it is in time there alone, so nobody has to count on the way back
    unmeasured = context.unmeasured(current)
    takes_s = INTERVALS * guard.interval_tokens / current.tokens_per_s
    frees_s = (unmeasured - ENOUGH) * guard.tokens_left / current.tokens_per_s
    plan, deadline = context.run.plan, context.run.deadline
    if unmeasured <= ENOUGH or takes_s >= frees_s or plan is None or deadline is None:
        return None
    if (deadline - plan.finish_at).total_seconds() > frees_s + takes_s:
        return None  # the plan leaves more than the reserve free
    where = "sleep" if target is None else target.id
    return context.hold(
        "measuring",
        f"the plan wants {where} now, but {figures(100 * unmeasured, 2)} % of the speed here is in "
        f"reserve until it is measured, which would call the run back {duration(frees_s)} sooner",
    )
