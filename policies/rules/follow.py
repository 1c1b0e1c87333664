"""Follow the plan: its point for now, if it is fresh and guard, dwell and day limit allow it. Pure.

A plan is made for the rest of the run; only where it wants the run now is ever carried out, for the
next cycle has a newer one. Hysteresis is in the plan: it changes only where that saves enough.

Invariant: what the plan wants is never done against the guard, nor to a point that is not on the
menu; without a fresh plan None is given and another rule decides.
"""

from dataclasses import replace
from datetime import timedelta

from wattmesh.policies.case import Case
from wattmesh.policies.decision import Action, Decision, PlanStep, PlanView, Rung
from wattmesh.policies.guard import Guard
from wattmesh.policies.horizon import between
from wattmesh.policies.rules.gate import Place, Switch, better_g_per_s, switch_cost_g
from wattmesh.policies.words import moment
from wattmesh.policies.words import point as named
from wattmesh.quantities import duration, intensity
from wattmesh.reconfig.catalogue import OperatingPoint

FRESH = timedelta(hours=2)
"""Age at which a plan is not followed any more; it is made anew with every value of the grid."""


def wanted(case: Case) -> PlanStep | None:
    """Give the step of the newest plan that holds now; None when there is no plan to follow."""
    plan, now = case.run.plan, case.seen.now
    if plan is None or case.seen.carbon.rung is not Rung.ISSUED:
        return None
    if not plan.made_at <= now < plan.made_at + FRESH:
        return None
    return plan.at(now)


def follow(case: Case) -> Decision | None:
    """Do what the plan wants now; None when there is no plan to follow."""
    step, plan = wanted(case), case.run.plan
    guard, current = case.guard, case.run.current
    if step is None or plan is None or guard is None or current is None:
        return None
    if step.point == current.id:
        decision = case.hold("at_target", _stays(case, plan, step))
    elif step.point == "":
        decision = _suspend(case, guard, current, step)
    else:
        target = next((each for each in case.menu if each.id == step.point), None)
        if target is None:
            return None
        decision = _go(case, guard, current, target, step)
    return replace(
        decision,
        reason=f"{decision.reason.rstrip('.')}{_not_kept(plan)}.",
        price_mu=plan.price_mu,
        plan_bound_g=plan.bound_g,
    )


def _not_kept(plan: PlanView) -> str:
    """Say what the plan does not keep of the service level and the budget, after a sentence."""
    return "".join(f"; {each}" for each in (plan.level, plan.budget) if each)


def _stays(case: Case, plan: PlanView, step: PlanStep) -> str:
    """Say how long the plan keeps the run where it is."""
    now = case.seen.now
    after = next((each for each in plan.steps if each.start >= step.end), None)
    if after is None:
        return f"the plan keeps it here until the work is done, by {moment(plan.finish_at, now)}"
    return f"the plan goes to {after.point or 'sleep'} {_at(after, case)}"


def _at(step: PlanStep, case: Case) -> str:
    """Say when a step begins."""
    return f"at {moment(step.start, case.seen.now)}"


def _limited(case: Case, what: str) -> Decision | None:
    """Hold for the operator's limits on how often the layout may change."""
    run, policy = case.run, case.seen.policy
    if run.since_switch_s is not None and run.since_switch_s < policy.dwell_s:
        return case.hold(
            "dwell",
            f"the plan wants {what} now, but the last switch was {duration(run.since_switch_s)} "
            f"ago and policy.dwell is {duration(policy.dwell_s)}",
        )
    if run.switches_today >= policy.max_switches_per_day:
        return case.hold(
            "day_limit",
            f"the plan wants {what} now, but it switched {run.switches_today} times in the last "
            f"24 h and policy.max_switches_per_day is {policy.max_switches_per_day}",
        )
    return None


def _clock_limited(case: Case, what: str) -> Decision | None:
    """Hold while the clock was changed a moment ago."""
    since_s, least_s = case.run.since_clock_s, case.seen.policy.clock_dwell_s
    if since_s is None or since_s >= least_s:
        return None
    return case.hold(
        "clock_dwell",
        f"the plan wants {what} now, but the clock was changed {duration(since_s)} ago and "
        f"policy.clock_dwell is {duration(least_s)}",
    )


def _suspend(case: Case, guard: Guard, current: OperatingPoint, step: PlanStep) -> Decision:
    """Let the run sleep."""
    if not guard.may_suspend(current):
        return case.hold(
            "deadline_guard", "the plan wants it to sleep now, which might miss the deadline"
        )
    limited = _limited(case, "it to sleep")
    if limited:
        return limited
    return case.say(
        Action.SUSPEND,
        "plan",
        f"suspending {case.here}: the grid is at {_grid(case)} and the plan trains on "
        f"{_until(case, step)}.",
    )


def _go(
    case: Case, guard: Guard, current: OperatingPoint, target: OperatingPoint, step: PlanStep
) -> Decision:
    """Go to the plan's point."""
    if not guard.may_go(current, target):
        return case.hold(
            "deadline_guard", f"the plan wants {named(target)} now, which might miss the deadline"
        )
    limit = _clock_limited if target.layout == case.run.layout else _limited
    limited = limit(case, named(target))
    if limited:
        return limited
    saved_g, cost_g = _offer(case, guard, current, target, step)
    decision = case.go(
        "plan",
        target,
        f"the grid is at {_grid(case)} and the plan keeps it there {_until(case, step)}",
    )
    return replace(decision, predicted_g=saved_g, switch_cost_g=cost_g)


def _grid(case: Case) -> str:
    """Intensity now."""
    return intensity(case.seen.carbon.slots[0].g_per_kwh)


def _until(case: Case, step: PlanStep) -> str:
    """Say when a step ends."""
    return f"until {moment(step.end, case.seen.now)}"


def _offer(
    case: Case, guard: Guard, current: OperatingPoint, target: OperatingPoint, step: PlanStep
) -> tuple[float, float]:
    """Give what the step saves against staying, at the plan's price of a token, and what it costs.

    Grams emitted less the grams that the tokens would cost elsewhere, until the plan changes again.
    """
    catalogue, plan, held = case.run.catalogue, case.run.plan, case.gpus_held
    if catalogue is None or plan is None:
        return 0.0, 0.0
    here, there = (
        Place(tokens_per_s=each.tokens_per_s, power_w=catalogue.held_power_w(each, held))
        for each in (current, target)
    )
    seconds = case.switch_s(target)
    energy_j, wait_s = here.power_w * seconds, 0.0
    if target.layout != case.run.layout:
        wait_s = guard.lag_s(current)
        energy_j = case.run.switch_energy_j or catalogue.switch.layout_energy_j
    start = case.seen.now + timedelta(seconds=wait_s + seconds)
    saved_g = sum(
        (slot.end - slot.start).total_seconds()
        * better_g_per_s(slot.g_per_kwh, plan.price_mu, here, there)
        for slot in between(case.seen.carbon.slots, start, step.end)
    )
    switch = Switch(seconds=seconds, energy_j=energy_j, wait_s=wait_s)
    now_g = case.seen.carbon.slots[0].g_per_kwh
    return saved_g, switch_cost_g(now_g, plan.price_mu, here, switch)
