"""What was lost against hindsight, and to what: the forecast, or the planner.

    regret = grams of the path as the grid came - least grams possible as it came
           = planning part: the path against the best one under the forecast it was made for
           + forecast part: the rest

Invariant: the parts sum to the regret exactly; `open_loop_limit_g` bounds the forecast part of a
path that was followed as planned, whatever the forecast was.
"""

from dataclasses import dataclass, replace

from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.problem import Problem
from wattmesh.telemetry.readings import J_PER_KWH


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Grams lost. A part may be negative: errors may cancel."""

    forecast_g: float
    planning_g: float

    @property
    def total_g(self) -> float:
        """All that hindsight would have saved."""
        return self.forecast_g + self.planning_g


def regret(
    problem: Problem,
    path: tuple[int, ...],
    *,
    observed_g_per_kwh: tuple[float, ...],
    bound_g: float,
    hindsight_bound_g: float,
) -> Regret:
    """Split the regret of a path that was followed as planned.

    Args:
        problem: with the forecast that the path was made for.
        path: as followed.
        observed_g_per_kwh: the intensities that came, per slot.
        bound_g: least grams under the forecast (`Plan.bound_g`).
        hindsight_bound_g: the same under what came.
    """
    expected_g = evaluate(problem, path).charged_g
    came_g = evaluate(replace(problem, g_per_kwh=observed_g_per_kwh), path).charged_g
    planning_g = expected_g - bound_g
    return Regret(planning_g=planning_g, forecast_g=came_g - hindsight_bound_g - planning_g)


def open_loop_limit_g(problem: Problem, observed_g_per_kwh: tuple[float, ...]) -> float:
    """Give the most grams a wrong forecast can cost: the sum of |error| x most joules.

    Both the path planned and the best one in hindsight do the work under either grid, so the
    difference of their grams changes by no more than this between the two (add and subtract).
    """
    most_w = _most_w(problem)
    return sum(
        abs(came - foreseen) / J_PER_KWH * most_w * seconds
        for came, foreseen, seconds in zip(
            observed_g_per_kwh, problem.g_per_kwh, problem.seconds, strict=True
        )
    )


def _most_w(problem: Problem) -> float:
    """Give the most watts a run can draw over a slot; the least are none, once its work is done."""
    ways = [way for row in problem.transitions for way in row if way is not None]
    switching_w = [way.energy_j / way.seconds for way in ways if way.seconds]
    at_once_j = [way.energy_j for way in ways if not way.seconds]
    running_w = [option.power_w for option in problem.options]
    return max(running_w + switching_w) + max(at_once_j, default=0.0) / min(problem.seconds)
