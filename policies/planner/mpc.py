"""What the planner is asked about one run, and its answer as the policy reads it. Pure.

The question is made from what one cycle saw, so that a worker may answer it later; the answer says
which question it answers. The planner itself is not imported here: the daemon decides without it.

Invariant: the same observation gives the same question and the same digest; a plan never reaches
beyond the deadline less what the guard keeps in reserve, nor to a point above the operator's power
cap while that holds.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wattmesh.policies.decision import (
    IntensitySlot,
    Observation,
    PlanStep,
    PlanView,
    RunView,
)
from wattmesh.policies.forecast.forecast_band import band_edges_g_per_kwh
from wattmesh.policies.guard import Guard
from wattmesh.policies.horizon import between
from wattmesh.policies.menu import why_not_sleep
from wattmesh.policies.planner import constraints
from wattmesh.policies.planner.grid import FINE, coarser_far, mixed
from wattmesh.policies.planner.options import Transitions, options, transitions
from wattmesh.policies.planner.problem import Option, Plan, PlanningProblem
from wattmesh.policies.run_context import RunContext, examine, times
from wattmesh.policies.shared_grid import SharedGrid
from wattmesh.reconfig.catalogue import PAUSED, Catalogue, OperatingPoint, Release, SwitchCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the planner is asked.

    Attributes:
        band_g_per_kwh: the grid at both edges of the forecast band, between which a plan must beat
            the most efficient single point; empty: it need not.
        ids: point id per option; "" for suspended.
        starts: when each slot begins. `digest`: of all that the answer depends on.
        level: what is not kept of the service level, as a clause; "" when all is.
    """

    made_at: datetime
    problem: PlanningProblem
    ids: tuple[str, ...]
    starts: tuple[datetime, ...]
    digest: str
    level: str = ""
    band_g_per_kwh: tuple[tuple[float, ...], ...] = ()

    @property
    def origin(self) -> str:
        """Point id the run is at; "" when it is suspended."""
        return self.ids[self.problem.start]


def question(
    seen: Observation,
    run: RunView,
    *,
    far: Sequence[tuple[timedelta, timedelta]] = (),
    grid: SharedGrid | None = None,
) -> Question | None:
    """Ask for a plan for one run; None while something is missing that a plan needs.

    Args:
        seen: what the cycle saw.
        run: one of its runs.
        far: from so far ahead on, the least length of slots, as a joint plan has them.
        grid: what was worked out for other runs of the observation; it changes no answer.
    """
    context = examine(seen, run, grid)
    guard, catalogue = context.guard, run.catalogue
    if guard is None or catalogue is None or not seen.carbon.slots:
        return None
    choices = _choices(context, catalogue)
    slots = coarser_far(_slots(context, guard, catalogue), seen.now, far, context.grid.joined)
    slots = constraints.cut_at_caps(context, slots)
    if choices is None or not slots or guard.tokens_left <= 0:
        return None
    speed = _expected(seen, guard)
    idle_draws = catalogue.release is not Release.RELEASED
    problem = PlanningProblem(
        tokens=guard.tokens_left / speed,
        seconds=tuple((slot.end - slot.start).total_seconds() for slot in slots),
        g_per_kwh=tuple(slot.g_per_kwh for slot in slots),
        options=choices.options,
        start=choices.start,
        transitions=choices.ways,
        dwell_left_s=_dwell_left_s(context),
        power_cap_w=constraints.power_cap_w(context, slots, choices.options),
        budget_g=constraints.budget_g(context),
    )
    level = constraints.level(context, problem, speed)
    problem = replace(problem, sla=level.sla)
    band = band_edges_g_per_kwh(slots, seen.now) if idle_draws else ()
    return Question(
        made_at=seen.now,
        problem=problem,
        band_g_per_kwh=band,
        ids=choices.ids,
        starts=tuple(slot.start for slot in slots),
        digest=hashlib.sha256(repr((problem, band)).encode()).hexdigest()[:16],
        level=level.why,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """What the run can be at. `ids`: point id per option. `start`: index of where it is."""

    options: tuple[Option, ...]
    ids: tuple[str, ...]
    start: int
    ways: Transitions


def _choices(context: RunContext, catalogue: Catalogue) -> _Choices | None:
    """Give the options and the ways between them; None when it is at none of them.

    A run that limits alone hold under a power cap may stay where it is, though nothing may go there
    while the cap holds: that is an option of its own, which no way leads to.
    """
    run, current, policy = context.run, context.run.current, context.seen.policy
    if current is None:
        return None
    points = constraints.usable(context)
    if current.id not in {point.id for point in points}:
        points = (*points, current)
    found = options(catalogue, points, context.gpus_held, pause=_may_sleep(context))
    found = constraints.needing(found, points)
    ids = tuple("" if each.name == PAUSED else each.name for each in found)
    origin = "" if run.suspended_s is not None else current.id
    if origin not in ids:
        return None
    start = ids.index(origin)
    held = origin != "" and constraints.over_the_cap(context, current)
    if held:
        found, ids = (*found, replace(found[start], bound_w=0.0)), (*ids, origin)
    ways = transitions(
        _costs_with_measured_joules(run, catalogue),
        found,
        release=catalogue.release,
        resizes=run.resizes,
        dwell_s=policy.dwell_s,
        clock_dwell_s=policy.clock_dwell_s,
        seconds=_seconds_by_name(context, catalogue),
    )
    if held:
        ways = _one_way(ways, start)
        start = len(ids) - 1
    return _Choices(options=found, ids=ids, start=start, ways=ways)


def _may_sleep(context: RunContext) -> bool:
    """Return whether sleep is an option; of a run that sleeps it is, until it is woken."""
    run = context.run
    return run.suspended_s is not None or not why_not_sleep(run, context.seen.policy)


def _one_way(ways: Transitions, same: int) -> Transitions:
    """Remove every transition to the last option, and the one from it to its equal, `same`."""
    rows = [(*row[:-1], None) for row in ways]
    return (*rows[:-1], (*rows[-1][:same], None, *rows[-1][same + 1 :]))


def _dwell_left_s(context: RunContext) -> float:
    """Seconds before which the layout may not change again."""
    since_s = context.run.since_switch_s
    return 0.0 if since_s is None else max(0.0, context.seen.policy.dwell_s - since_s)


def answer(asked: Question, plan: Plan, *, level: str = "") -> PlanView:
    """Read the planner's answer.

    Args:
        asked: the question.
        plan: the answer.
        level: why the plan does without the service level, as a clause; "" when it does not.
    """
    steps: list[PlanStep] = []
    seconds = asked.problem.seconds
    for slot, option in enumerate(plan.path):
        start = asked.starts[slot]
        end = start + timedelta(seconds=seconds[slot])
        if slot == len(plan.path) - 1 and plan.evaluation.ends_s is not None:
            end = asked.made_at + timedelta(seconds=plan.evaluation.ends_s)
        point = asked.ids[option]
        if steps and steps[-1].point == point:
            start = steps.pop().start
        steps.append(PlanStep(start=start, end=end, point=point))
    return PlanView(
        made_at=asked.made_at,
        digest=asked.digest,
        origin=asked.origin,
        steps=tuple(steps),
        price_mu=plan.mu_g_per_token,
        grams=plan.evaluation.grams,
        bound_g=plan.bound_g,
        gap=plan.gap,
        level=level or asked.level,
        budget=plan.budget,
        slots=len(seconds),
        options=len(asked.ids),
    )


def rest(before: PlanView, asked: Question) -> tuple[int, ...]:
    """Give the plan before as a path of a newer question, as far as it reaches."""
    found: list[int] = []
    stays = True
    for start in asked.starts:
        step = before.at(start)
        if step is None or step.point not in asked.ids:
            break
        stays = stays and step.point == asked.origin
        found.append(asked.problem.start if stays else asked.ids.index(step.point))
    return tuple(found)


def _costs_with_measured_joules(run: RunView, catalogue: Catalogue) -> SwitchCost:
    switch = catalogue.switch
    if run.switch_energy_j is not None:
        switch = replace(switch, layout_energy_j=run.switch_energy_j)
    return switch


def _seconds_by_name(context: RunContext, catalogue: Catalogue) -> Callable[[str, str], float]:
    points: dict[str, OperatingPoint] = {point.id: point for point in catalogue.points}
    known = context.expects or times(context.run, catalogue)
    return lambda origin, target: known.expected(points.get(origin), points.get(target)).seconds


def _expected(seen: Observation, guard: Guard) -> float:
    """Share of catalogue speed to plan with: all of it, unless the run is known to be slower.

    The guard's reserve is kept by the guard; a plan that counted on it would run too fast.
    """
    reserve = 1.0 - seen.policy.guard_margin
    return guard.counted_on if guard.counted_on < reserve else 1.0


def _slots(context: RunContext, guard: Guard, catalogue: Catalogue) -> tuple[IntensitySlot, ...]:
    """Give the slots from now to the deadline, less the guard's reserve."""
    now = context.seen.now
    end = now + timedelta(seconds=guard.time_left_s)
    horizon = context.grid.to_end(end)
    reserve = timedelta(seconds=guard.reserve_s(_slowest_alike(guard, catalogue)))
    policy = context.seen.policy
    held = timedelta(seconds=min(policy.dwell_s, policy.clock_dwell_s))
    # Where a point may be held for less, as in a recording that plays compressed, slots are finer.
    slots = between(horizon.slots, now, end - reserve)
    return mixed(slots, now, min(FINE, held), context.grid.joined)


def _slowest_alike(guard: Guard, catalogue: Catalogue) -> OperatingPoint:
    """Give the slowest point of the fastest's layout: where a plan likely ends."""
    alike = [each for each in catalogue.points if each.layout == guard.fastest.layout]
    return min((*alike, guard.fastest), key=lambda each: each.tokens_per_s)
