"""Between observing and acting: the newest plans are laid beside the runs, then it is decided.

The one function that the live cycle and replay share; what differs is who makes plans, and how old
they are.

Invariant: nothing waits for a plan; a run without one is decided on all the same, and whatever is
wrong with one run's numbers is an error of nobody else.
"""

from dataclasses import replace
from typing import Protocol

from wattmesh.policies.decision import Decision, Observation, PlanView, RunView
from wattmesh.policies.isolation import cause
from wattmesh.policies.rules.decide import decide


class Plans(Protocol):
    """Who makes plans."""

    def newest(self, seen: Observation, run: RunView) -> PlanView | None:
        """Give the newest plan of a run, however old; None when there is none."""
        ...


class NoPlans:
    """Nobody makes plans."""

    def newest(self, seen: Observation, run: RunView) -> PlanView | None:
        """Give none."""
        return None


def think(seen: Observation, plans: Plans) -> tuple[Observation, tuple[Decision, ...]]:
    """Decide about every run, with its newest plan; give what was decided on, too."""
    planned = replace(seen, runs=tuple(_with_plan(seen, run, plans) for run in seen.runs))
    return planned, decide(planned)


def _with_plan(seen: Observation, run: RunView, plans: Plans) -> RunView:
    """Lay the newest plan beside one run; one that none can be asked for is held."""
    try:
        return run if run.unreadable else replace(run, plan=plans.newest(seen, run))
    except Exception as error:
        return replace(run, unreadable=cause(error))
