"""Answer the question for a plan: the planner, warm from the plan before. Imports numpy.

For a worker process and for replay; the daemon itself only asks (`mpc.py`) and reads the answer.
Invariant: the same question and plan before give the same answer; a service level that leaves no
plan is given up, and said to be, before the deadline or a cap is.
"""

from dataclasses import replace

from wattmesh.policies.decision import PlanView
from wattmesh.policies.mpc import Question, answer, rest
from wattmesh.policies.planner.plan import plan
from wattmesh.policies.planner.problem import NoPlan, Plan, Problem
from wattmesh.policies.planner.steady import steady


def solved(asked: Question, before: PlanView | None = None) -> PlanView | NoPlan:
    """Plan the rest of a run, keeping to the plan before unless the new one is worth it."""
    path = rest(before, asked) if before else ()
    near_mu = before.price_mu if before else None
    problem, level = asked.problem, ""
    found = _plan(problem, path, near_mu)
    if isinstance(found, NoPlan) and problem.sla is not None:
        level = f"{found.reason}, so the plan does without that level"
        problem = replace(problem, sla=None)
        found = _plan(problem, path, near_mu)
    if isinstance(found, NoPlan):
        return _because_capped(problem, found)
    return answer(asked, steady(problem, found, path), level=level)


def _plan(problem: Problem, path: tuple[int, ...], near_mu: float | None) -> Plan | NoPlan:
    """Plan with the rest of the plan before among the candidates."""
    return plan(problem, also=(path,) if path else (), near_mu=near_mu)


def _because_capped(problem: Problem, none: NoPlan) -> NoPlan:
    """Say so where it is the operator's power cap that leaves no plan."""
    if not problem.power_cap_w or isinstance(plan(replace(problem, power_cap_w=())), NoPlan):
        return none
    return replace(none, reason=f"under the operator's power cap {none.reason}")


def answered(asked: Question, before: PlanView | None = None) -> PlanView | None:
    """Plan the rest of a run; None when no plan does the work in time: the guard then decides."""
    found = solved(asked, before)
    return None if isinstance(found, NoPlan) else found
