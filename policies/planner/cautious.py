"""Planning under a forecast that is not certain: by its quantiles, or over scenarios.

Two ways, both on top of `plan`. *Cautious*: slots count with a share `kappa` of the way from the
forecast to its upper quantile, so hours nobody is sure of are relied on less. *Scenarios*: the
options for now are weighed by what the best course after each comes to on average, every scenario
followed by a plan of its own, for the next plan will know more (a two-stage program whose second
stage is the planner). The mean of the scenarios alone would not do: open loop, grams are linear in
intensity, and the plan for the mean grid is the plan for the mean of the grams.

Invariant: what comes back was planned and judged under the forecast itself; only the choice between
paths looks at the spread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.planner.plan import plan
from wattmesh.policies.planner.problem import NoPlan, Plan, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """An option for now: mean grams of the scenarios' plans that begin with it."""

    option: int
    mean_g: float
    plans: tuple[Plan, ...]


def cautious_g_per_kwh(slots: Sequence[IntensitySlot], kappa: float) -> tuple[float, ...]:
    """Give each slot's intensity moved towards its upper quantile, or below 0 its lower one.

    Args:
        slots: forecast; those without quantiles count as they are.
        kappa: -1 (the lower quantile) to 1 (the upper one); 0 is the forecast itself.
    """
    return tuple(_moved(slot, kappa) for slot in slots)


def _moved(slot: IntensitySlot, kappa: float) -> float:
    """Move one slot."""
    goal = slot.high_g_per_kwh if kappa > 0 else slot.low_g_per_kwh
    if goal is None:
        return slot.g_per_kwh
    return slot.g_per_kwh + abs(kappa) * (goal - slot.g_per_kwh)


def scenarios(slots: Sequence[IntensitySlot]) -> tuple[tuple[float, ...], ...]:
    """Give three equally likely grids: all low, as forecast, all high; one where nothing is known.

    Errors of a forecast last for days, so quantiles of neighbouring slots go together. The middle
    of each third of a distribution lies nearer than its 10 % and 90 % quantiles: 0.75 of the way,
    for errors that are about normal (0.97 / 1.28).
    """
    middle = tuple(slot.g_per_kwh for slot in slots)
    grids = (cautious_g_per_kwh(slots, -0.75), middle, cautious_g_per_kwh(slots, 0.75))
    return tuple(dict.fromkeys(grids))


def weigh(
    problem: Problem, grids: Sequence[tuple[float, ...]], first: Sequence[int]
) -> tuple[Weighed, ...]:
    """Weigh options for the first slot over scenarios, best first.

    Args:
        problem: its intensities are replaced by each grid's; those of the first slot should agree.
        grids: equally likely intensities per slot.
        first: options for now.

    Returns:
        The options for which every scenario has a plan.
    """
    found = []
    layout = problem.options[problem.start].layout
    for option in first:
        if problem.dwell_left_s > 0 and problem.options[option].layout != layout:
            continue
        plans = [plan(_beginning(problem, option, grid)) for grid in grids]
        legal = [each for each in plans if isinstance(each, Plan)]
        if len(legal) == len(plans):
            mean_g = sum(each.evaluation.charged_g for each in legal) / len(legal)
            found.append(Weighed(option=option, mean_g=mean_g, plans=tuple(legal)))
    return tuple(sorted(found, key=lambda each: each.mean_g))


def plan_over(
    problem: Problem, grids: Sequence[tuple[float, ...]], *, least_gain: float = 5e-4
) -> Plan | NoPlan:
    """Plan for the forecast, beginning with what is best on average over the scenarios.

    Only what some scenario's plan wants now is weighed, and staying. Another option than staying
    must save `least_gain` of the grams on average. The bound is that of every path.
    """
    free = plan(problem)
    if isinstance(free, NoPlan):
        return free
    own = [plan(replace(problem, g_per_kwh=grid)) for grid in grids]
    wanted = {problem.start, free.path[0]}
    wanted |= {each.path[0] for each in own if isinstance(each, Plan)}
    weighed = weigh(problem, grids, sorted(wanted))
    stay = next((each for each in weighed if each.option == problem.start), None)
    if not weighed:
        return free
    best = weighed[0]
    if stay and stay.mean_g - best.mean_g <= least_gain * best.mean_g:
        best = stay
    found = plan(_beginning(problem, best.option, problem.g_per_kwh))
    return replace(found, bound_g=free.bound_g) if isinstance(found, Plan) else free


def _beginning(problem: Problem, option: int, grid: tuple[float, ...]) -> Problem:
    """Give the problem in which the first slot is spent at `option`."""
    return replace(problem, g_per_kwh=grid, first=option)
