"""Follow the plan: its point for now, if it is fresh and guard, dwell and day limit allow it. Pure.

A plan covers the rest of the run, but only its point for now is carried out: the next cycle has a
newer plan. Hysteresis is in the plan, which changes only where that saves enough.

Invariant: no run goes against the guard, nor to a point that is not on its menu; without a fresh
plan the answer is None and another rule decides.
"""

from dataclasses import replace
from datetime import timedelta

from wattmesh.policies.decision import Decision, PlanStep, PlanView, Rung
from wattmesh.policies.guard import Guard
from wattmesh.policies.horizon import between
from wattmesh.policies.reason_text import moment
from wattmesh.policies.reason_text import point as named
from wattmesh.policies.rules.gate import SpeedPower, better_g_per_s, switch_cost_g
from wattmesh.policies.rules.limits import too_often
from wattmesh.policies.rules.outlook import switch_estimate
from wattmesh.policies.rules.suspend import suspend
from wattmesh.policies.run_context import RunContext
from wattmesh.quantities import intensity
from wattmesh.reconfig.catalogue import OperatingPoint

FRESH = timedelta(hours=2)
"""Age at which a plan is no longer followed; a new one is made with every value of the grid."""


def planned_step(context: RunContext) -> PlanStep | None:
    """Give the step of the newest plan that holds now; None when there is no plan to follow."""
    plan, now = context.run.plan, context.seen.now
    if plan is None or context.seen.carbon.rung is not Rung.ISSUED:
        return None
    if not plan.made_at <= now < plan.made_at + FRESH:
        return None
    return plan.at(now)


def follow(context: RunContext) -> Decision | None:
    """Do what the plan wants now; None when there is no plan to follow."""
    step, plan = planned_step(context), context.run.plan
    guard, current = context.guard, context.run.current
    if step is None or plan is None or guard is None or current is None:
        return None
    if step.point == current.id:
        decision = context.hold("at_target", _how_long_it_stays(context, plan, step))
    elif step.point == "":
        decision = suspend(context, guard, current, step)
    else:
        target = next((each for each in context.menu if each.id == step.point), None)
        if target is None:
            return None
        decision = _go(context, guard, current, target, step)
    return replace(
        decision,
        reason=f"{decision.reason.rstrip('.')}{_by_whom(plan)}{_not_kept(plan)}.",
        price_mu=plan.price_mu,
        plan_bound_g=plan.bound_g,
    )


def _by_whom(plan: PlanView) -> str:
    """Say that the run's watts are by a joint plan, to end a sentence."""
    if not plan.sharing:
        return ""
    return f"; its watts under the power cap are by the joint plan of {plan.sharing} runs"


def _not_kept(plan: PlanView) -> str:
    """Say which of service level and budget the plan does not keep, to end a sentence."""
    return "".join(f"; {each}" for each in (plan.level, plan.budget) if each)


def _how_long_it_stays(context: RunContext, plan: PlanView, step: PlanStep) -> str:
    now = context.seen.now
    after = next((each for each in plan.steps if each.start >= step.end), None)
    if after is None:
        return f"the plan keeps it here until the work is done, by {moment(plan.finish_at, now)}"
    return f"the plan goes to {after.point or 'sleep'} {_at(after, context)}"


def _at(step: PlanStep, context: RunContext) -> str:
    return f"at {moment(step.start, context.seen.now)}"


def _limited(context: RunContext, target: OperatingPoint | None, what: str) -> Decision | None:
    """Hold for the operator's limits on how often a run may change."""
    found = too_often(context, target)
    if found is None:
        return None
    kind, why = found
    return context.hold(kind, f"the plan wants {what} now, but {why}")


def _go(
    context: RunContext,
    guard: Guard,
    current: OperatingPoint,
    target: OperatingPoint,
    step: PlanStep,
) -> Decision:
    if not guard.may_go(current, target):
        return context.hold(
            "deadline_guard", f"the plan wants {named(target)} now, which might miss the deadline"
        )
    limited = _limited(context, target, named(target))
    if limited:
        return limited
    saved_g, cost_g = _offer(context, guard, current, target, step)
    decision = context.go(
        "plan",
        target,
        f"the grid is at {_grid(context)} and the plan keeps it there {_until(context, step)}",
    )
    return replace(decision, predicted_g=saved_g, switch_cost_g=cost_g)


def _grid(context: RunContext) -> str:
    return intensity(context.seen.carbon.slots[0].g_per_kwh)


def _until(context: RunContext, step: PlanStep) -> str:
    return f"until {moment(step.end, context.seen.now)}"


def _offer(
    context: RunContext,
    guard: Guard,
    current: OperatingPoint,
    target: OperatingPoint,
    step: PlanStep,
) -> tuple[float, float]:
    """Give (grams that the step saves against staying, grams that going there costs).

    Grams emitted less the grams that the tokens would cost elsewhere, until the plan changes again.
    """
    catalogue, plan, held = context.run.catalogue, context.run.plan, context.gpus_held
    if catalogue is None or plan is None:
        return 0.0, 0.0
    here, there = (
        SpeedPower(tokens_per_s=each.tokens_per_s, power_w=catalogue.held_power_w(each, held))
        for each in (current, target)
    )
    switch = switch_estimate(context, catalogue, guard, here, target)
    start = context.seen.now + timedelta(seconds=switch.wait_s + switch.seconds)
    saved_g = sum(
        (slot.end - slot.start).total_seconds()
        * better_g_per_s(slot.g_per_kwh, plan.price_mu, here, there)
        for slot in between(context.seen.carbon.slots, start, step.end)
    )
    now_g = context.seen.carbon.slots[0].g_per_kwh
    return saved_g, switch_cost_g(now_g, plan.price_mu, here, switch)
