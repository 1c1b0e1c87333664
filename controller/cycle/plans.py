"""The newest plan of each run, which an observation carries. Pure.

Plans are made outside the cycle and asked for in memory: an observer takes the newest ones there
are, and waits for none.
"""

from dataclasses import replace
from typing import Protocol

from wattmesh.policies.decision import Observation, PlanView, RunView
from wattmesh.policies.isolation import cause


class Plans(Protocol):
    """Who makes plans: a process beside the daemon, or a planner in replay."""

    def newest(self, seen: Observation, run: RunView) -> PlanView | None:
        """Return the newest plan of a run, however old; None if there is none."""
        ...


class NoPlans:
    """The null object: there are no plans, so the price rule decides alone."""

    def newest(self, seen: Observation, run: RunView) -> PlanView | None:
        """Return None."""
        return None


def with_plans(seen: Observation, plans: Plans) -> Observation:
    """Return the observation with the newest plan of every run.

    A run for which asking fails is marked unreadable, and so held; the others have theirs.
    """
    return replace(seen, runs=tuple(_with_plan(seen, run, plans) for run in seen.runs))


def _with_plan(seen: Observation, run: RunView, plans: Plans) -> RunView:
    try:
        return run if run.unreadable else replace(run, plan=plans.newest(seen, run))
    except Exception as error:
        return replace(run, unreadable=cause(error))
