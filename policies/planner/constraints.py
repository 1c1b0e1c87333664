"""What a plan must keep beside its deadline: power cap, service level, budget. Pure.

Priorities: operator cap > deadline > service level > budget > grams. A higher one is never given up
for a lower one: windows of the service level that cap and switches make impossible do not count,
and a budget changes no plan; the plan only says that the budget is not kept, and why.

Invariant: only what is known limits a plan. A cap holds until its end and no longer, no GPUs but
those held now are counted on, and of the time before now only what the journal holds counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.horizon import between
from wattmesh.policies.menu import menu
from wattmesh.policies.planner.evaluate import kept_from_s
from wattmesh.policies.planner.problem import Option, PlanningProblem, Sla
from wattmesh.policies.reason_text import moment
from wattmesh.policies.run_context import RunContext
from wattmesh.policies.slowing import needs_w
from wattmesh.quantities import count, duration
from wattmesh.reconfig.catalogue import OperatingPoint
from wattmesh.telemetry.readings import J_PER_KWH

ENDLESS = 1e30
"""Tokens that no run ever trains; a float, for a question travels as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLevel:
    """The service level as a plan is to keep it.

    Attributes:
        sla: None: none is set, or none of its windows counts.
        why: what is not kept of it and why, as a clause; "" when all is.
    """

    sla: Sla | None = None
    why: str = ""


def usable(context: RunContext) -> tuple[OperatingPoint, ...]:
    """List the points that a plan may use at some time: a cap ends, so it takes none away."""
    return menu(replace(context.run, room_w=None), context.seen.policy)


def needing(options: Sequence[Option], points: Sequence[OperatingPoint]) -> tuple[Option, ...]:
    """Give the options with what a power cap must leave room for, as the menu counts it."""
    needed_w = {each.id: needs_w(each) for each in points}
    return tuple(replace(each, bound_w=needed_w.get(each.name, 0.0)) for each in options)


def over_the_cap(context: RunContext, point: OperatingPoint) -> bool:
    """Say whether a run at `point` is held there by limits alone: nothing may go to it now."""
    return context.run.room_w is not None and needs_w(point) > context.run.room_w


def cut_at_caps(context: RunContext, slots: Sequence[IntensitySlot]) -> tuple[IntensitySlot, ...]:
    """Cut slots where power caps begin and end, so that each is under one as a whole or not."""
    cap, ahead = context.seen.cap, context.run.caps_ahead
    ends = [cap.until] if cap is not None else []
    edges = sorted({*ends, *(edge for each in ahead for edge in (each.start, each.until))})
    for edge in edges:
        if slots and slots[0].start < edge < slots[-1].end:
            before = between(slots, slots[0].start, edge)
            slots = (*before, *between(slots, edge, slots[-1].end))
    return tuple(slots)


def power_cap_w(
    context: RunContext, slots: Sequence[IntensitySlot], options: Sequence[Option]
) -> tuple[float, ...]:
    """Give what operators' caps leave the run in each slot; empty where there is room for all.

    After a cap's end there is room for every option. A cap whose end is not known never ends. Under
    an announced one the option that needs least stays: limits alone may hold the run there. What a
    joint plan says comes instead: others make room, or need it.
    """
    room_w, cap = context.run.room_w, context.seen.cap
    most_w = max(each.needs_w for each in options)
    least_w = min((each.needs_w for each in options if each.tokens_per_s > 0), default=most_w)
    found = [
        max(0.0, room_w)
        if room_w is not None and (cap is None or slot.start < cap.until)
        else most_w
        for slot in slots
    ]
    for each in context.run.caps_ahead:
        left_w = max(least_w, each.room_w)
        found = [
            min(limit_w, left_w) if each.start <= slot.start < each.until else limit_w
            for slot, limit_w in zip(slots, found, strict=True)
        ]
    for step in context.run.shared_room:
        found = [
            max(least_w, step.room_w) if step.start <= slot.start < step.until else limit_w
            for slot, limit_w in zip(slots, found, strict=True)
        ]
    return tuple(found) if min(found) < most_w else ()


def budget_g(context: RunContext) -> float | None:
    """Give the grams that the rest of the run may emit; None where no budget says so.

    Only a budget of the run's own whose period lasts until the deadline does. Joules that it does
    not count yet count at the intensity of now.
    """
    run, slots = context.run, context.seen.carbon.slots
    if run.budget is None or run.deadline is None or run.budget.until < run.deadline or not slots:
        return None
    return run.budget.left_g - run.budget.unpriced_j * slots[0].g_per_kwh / J_PER_KWH


def least_tokens_per_s(context: RunContext) -> float:
    """Give the speed that is the service level; 0 when there is none."""
    share = context.seen.policy.sla_throughput_share
    if not share:
        return 0.0
    return share * max((each.tokens_per_s for each in usable(context)), default=0.0)


def quick_enough(context: RunContext) -> tuple[OperatingPoint, ...]:
    """List the points of the menu that are at the service level all by themselves."""
    least = least_tokens_per_s(context)
    return tuple(each for each in context.menu if each.tokens_per_s >= least)


def too_slow(context: RunContext, point: OperatingPoint) -> str:
    """Say that a point is slower than the service level, as a clause; "" when it is not."""
    least = least_tokens_per_s(context)
    if point.tokens_per_s >= least:
        return ""
    return (
        f"{point.id} trains {count(point.tokens_per_s)} tokens/s and the service level is "
        f"{count(least)} (policy.sla_throughput_share)"
    )


def level(context: RunContext, problem: PlanningProblem, speed: float) -> KeptLevel:
    """Give the service level for the rest of a run.

    Windows that began before now count what was trained in them. Those that would be missed at the
    fastest option there is at every moment do not count: they are lost.

    Args:
        context: the run.
        problem: all of the question but its level.
        speed: share of catalogue speed that the question counts on.
    """
    least, window_s = least_tokens_per_s(context), context.seen.policy.sla_window_s
    if least <= 0.0:
        return KeptLevel()
    before = _before(context, speed)
    name = f"the service level of {count(least * speed)} tokens/s over every {duration(window_s)}"
    if sum(problem.seconds) - (before[0][0] if before else 0.0) < window_s:
        why = f"{name} binds nothing: a window is longer than what is known and left of the run"
        return KeptLevel(why=why)
    sla = Sla(window_s=window_s, tokens_per_s=least, before=before, from_s=-window_s)
    whole = replace(problem, tokens=ENDLESS, sla=sla)
    from_s = kept_from_s(whole, _fastest(whole))
    if from_s is None:
        return KeptLevel(why=f"{name} cannot be kept before the deadline{_under(whole)}")
    if from_s == sla.from_s:
        return KeptLevel(sla=sla)
    at = moment(context.seen.now + timedelta(seconds=round(from_s)), context.seen.now)
    missed = f"{name} is missed by windows that begin before {at}{_under(whole)}"
    return KeptLevel(sla=replace(sla, from_s=from_s), why=missed)


def _under(problem: PlanningProblem) -> str:
    """Name the power cap as the cause where, without it, no window were missed."""
    free = replace(problem, power_cap_w=())
    if not problem.power_cap_w or problem.sla is None:
        return ""
    if kept_from_s(free, _fastest(free)) != problem.sla.from_s:
        return ""
    return ", for the power cap leaves no room for more speed"


def _before(context: RunContext, speed: float) -> tuple[tuple[float, float], ...]:
    """Give what was trained before now, as the question counts tokens: (time, tokens), both <= 0.

    What a restart lost counts as not trained.
    """
    found: list[tuple[float, float]] = []
    least = 0.0
    for ago_s, tokens in sorted(context.run.trained):
        if ago_s > 0.0 and (not found or -ago_s < found[-1][0]):
            least = min(least, (tokens - context.run.tokens) / speed)
            found.append((-ago_s, least))
    return tuple(reversed(found))


def _fastest(problem: PlanningProblem) -> tuple[int, ...]:
    """Give the path at the fastest option of each slot, as early as the dwell allows."""
    path: list[int] = []
    at, begin_s = problem.start, 0.0
    for slot, seconds in enumerate(problem.seconds):
        able = [n for n in range(len(problem.options)) if problem.available(slot, n)]
        ways = [n for n in able if n == at or problem.way(at, n) is not None]
        if begin_s < problem.dwell_left_s:
            kept = [n for n in ways if _alike(problem, n, problem.start)]
            ways = kept or ways
        if ways:
            # Of equally fast ones the one it is at: a change costs time.
            at = max(ways, key=lambda n: (problem.options[n].tokens_per_s, n == at))
        path.append(at)
        begin_s += seconds
    return tuple(path)


def _alike(problem: PlanningProblem, one: int, other: int) -> bool:
    return problem.options[one].layout == problem.options[other].layout
