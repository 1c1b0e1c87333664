"""Answer the question for a plan: the planner, warm from the plan before. Imports numpy.

For a worker process and for replay; the daemon itself only asks (`mpc.py`) and reads the answer.
Invariant: the same question and plan before give the same answer.
"""

from wattmesh.policies.decision import PlanView
from wattmesh.policies.mpc import Question, answer, rest
from wattmesh.policies.planner.plan import plan
from wattmesh.policies.planner.problem import NoPlan
from wattmesh.policies.planner.steady import steady


def solved(asked: Question, before: PlanView | None = None) -> PlanView | NoPlan:
    """Plan the rest of a run, keeping to the plan before unless the new one is worth it."""
    path = rest(before, asked) if before else ()
    found = plan(
        asked.problem,
        also=(path,) if path else (),
        near_mu=before.price_mu if before else None,
    )
    if isinstance(found, NoPlan):
        return found
    return answer(asked, steady(asked.problem, found, path))


def answered(asked: Question, before: PlanView | None = None) -> PlanView | None:
    """Plan the rest of a run; None when no plan does the work in time: the guard then decides."""
    found = solved(asked, before)
    return None if isinstance(found, NoPlan) else found
