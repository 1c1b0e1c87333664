"""What no policy can beat without knowing the future: the oracle's schedule, and two lower bounds.

All come from the planner over the recorded grid, without dwell, guard and boundaries. Oracle and
bound pay what switches cost: the plan is judged by `wattmesh.policies.planner.evaluate`, the bound
is its dual value. The ideal is that value where switches cost neither time nor energy.

Invariant: ideal <= bound <= oracle, and bound <= the grams of every policy on the same grid.
"""

import time
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from wattmesh.controller.replay.grid import cut
from wattmesh.controller.replay.world import Scene
from wattmesh.errors import InputInvalid
from wattmesh.policies.horizon import between
from wattmesh.policies.planner.options import options, transitions
from wattmesh.policies.planner.problem import NoPlan, OptionTransition, Plan, PlanningProblem
from wattmesh.policies.planner.solver import solve


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """The oracle. `bound_g`: no policy emits less. `solve_s`: seconds to find both.

    Attributes:
        ideal_g: no policy would emit less if switches were free.
        switched_s: when its layout changes, seconds from the start.
    """

    plan: Plan
    bound_g: float
    ideal_g: float
    switched_s: tuple[float, ...]
    solve_s: float


def hindsight(scene: Scene, *, pause: bool) -> Hindsight:
    """Plan a run with the whole recorded grid known.

    Raises:
        InputInvalid: the work does not fit before the deadline.
    """
    began = time.perf_counter()
    catalogue = scene.catalogue
    slots = between(cut(scene.grid, scene.start, scene.deadline), scene.start, scene.deadline)
    kinds = options(catalogue, catalogue.points, scene.gpus, pause=pause)
    problem = PlanningProblem(
        tokens=scene.tokens,
        seconds=tuple((slot.end - slot.start).total_seconds() for slot in slots),
        g_per_kwh=tuple(slot.g_per_kwh for slot in slots),
        options=kinds,
        start=[each.name for each in kinds].index(scene.first),
        transitions=transitions(catalogue.switch, kinds, release=catalogue.release),
    )
    found = solve(problem)
    if isinstance(found, NoPlan):
        raise InputInvalid(f"the job cannot be replayed: {found.reason}")
    solve_s = time.perf_counter() - began
    return Hindsight(
        plan=found,
        bound_g=found.bound_g,
        ideal_g=_ideal_g(problem, found),
        switched_s=_layout_changes_s(problem, found.path),
        solve_s=solve_s,
    )


def _ideal_g(problem: PlanningProblem, real: Plan) -> float:
    """Give the bound where switches cost nothing; never above the real one."""
    free_way = OptionTransition(seconds=0.0, energy_j=0.0)
    ways = tuple(tuple(free_way for _ in problem.options) for _ in problem.options)
    free = solve(replace(problem, transitions=ways), near_mu=real.mu_g_per_token)
    return real.bound_g if isinstance(free, NoPlan) else min(free.bound_g, real.bound_g)


def _layout_changes_s(problem: PlanningProblem, path: tuple[int, ...]) -> tuple[float, ...]:
    layouts = [problem.options[each].layout for each in (problem.start, *path)]
    begins = accumulate(problem.seconds, initial=0.0)
    return tuple(
        at_s for at_s, (old, new) in zip(begins, pairwise(layouts), strict=False) if old != new
    )
