"""The policy that saves grams: the newest plan's point, else the price rule's, if a switch pays.

A plan of the planner (`follow.py`) comes first. Without a fresh one the run follows one carbon
price of its own (`price.py`). Asked only with a usable signal, a deadline and a guard that lets the
run stay.

Invariant: no run goes to a point after which the guard could not keep the deadline; by the price
rule none goes to a point above the hull, or slower than the service level.
"""

from dataclasses import replace

from wattmesh.policies.decision import Decision
from wattmesh.policies.guard import Guard
from wattmesh.policies.hull import Vertex, lower_hull
from wattmesh.policies.planner.constraints import quick_enough
from wattmesh.policies.rules import reasons
from wattmesh.policies.rules.follow import follow
from wattmesh.policies.rules.gate import switch_gain
from wattmesh.policies.rules.limits import too_often
from wattmesh.policies.rules.outlook import Outlook, look_ahead, place
from wattmesh.policies.run_context import RunContext
from wattmesh.telemetry.readings import J_PER_KWH


def automatic(context: RunContext) -> Decision:
    """Choose between staying and the plan's point."""
    run, guard = context.run, context.guard
    if run.catalogue is None or run.current is None or guard is None:
        return context.hold("unknown_point", "not enough is known about it to choose")
    planned = follow(context)
    if planned is not None:
        return planned
    hull = lower_hull(run.catalogue, quick_enough(context), context.gpus_held)
    if not [vertex for vertex in hull.vertices if vertex.point.id != run.current.id]:
        return context.hold("no_choice", reasons.no_choice(context, hull))
    view = look_ahead(context, run.catalogue, run.current, guard, hull)
    if view is None:
        return context.hold("no_slack", reasons.no_slack(guard, run.current))
    return replace(_choose(context, guard, view), price_mu=view.price_mu, plan_bound_g=view.bound_g)


def _choose(context: RunContext, guard: Guard, view: Outlook) -> Decision:
    """Take the solution's point for now if guard, limits and gain allow it."""
    wanted = _wanted(view)
    if not wanted:
        return context.hold("at_target", reasons.at_target(context, view))
    target = next((each for each in wanted if guard.may_go(view.current, each.point)), None)
    if target is None:
        return context.hold("deadline_guard", reasons.barred(guard, view, wanted[0]))
    return _limits(context, view, target) or _pays(context, guard, view, target)


def _wanted(view: Outlook) -> list[Vertex]:
    """List the solution's vertex for now and the faster ones, as far as they beat staying."""
    intensity = view.now_g_per_kwh / J_PER_KWH
    vertices, mu = view.hull.vertices, view.solution.mu_g_per_token
    best = 0
    # The same product as in the plan, so that what ties there ties here.
    while best + 1 < len(vertices) and intensity * vertices[best + 1].marginal_j_per_token <= mu:
        best += 1
    wanted = [each for each in vertices[best:] if view.better(view.now_g_per_kwh, each) > 0]
    return wanted if wanted and wanted[0] is vertices[best] else []


def _limits(context: RunContext, view: Outlook, target: Vertex) -> Decision | None:
    """Hold for the operator's limits on how often a run may change."""
    found = too_often(context, target.point)
    if found is None:
        return None
    kind, why = found
    return context.hold(kind, reasons.limited(view, target, why))


def _pays(context: RunContext, guard: Guard, view: Outlook, target: Vertex) -> Decision:
    """Switch if that saves `gain_factor` times what it costs, else hold."""
    policy, cost = context.seen.policy, view.cost(target.point)
    clock = target.point.layout == view.current.layout
    dwell_s = policy.clock_dwell_s if clock else policy.dwell_s
    made = switch_gain(
        view.hull,
        view.solution,
        view.here,
        place(target),
        switch=cost,
        keep_s=max(dwell_s, cost.seconds),
        shared=view.shared,
    )
    if made.saved_g <= policy.gain_factor * made.cost_g:
        decision = context.hold("gain_too_small", reasons.too_small(context, target, made))
    else:
        kind, why = reasons.switch(context, guard, view, target, made)
        decision = context.go(kind, target.point, why)
    return replace(decision, predicted_g=made.saved_g, switch_cost_g=made.cost_g)
