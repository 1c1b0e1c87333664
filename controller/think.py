"""Between observing and acting: the newest plans are laid beside the runs, then it is decided.

The one function that the live cycle and replay share; what differs is who makes plans, and how old
they are.

Invariant: nothing waits for a plan; a run without one is decided on all the same.
"""

from dataclasses import replace
from typing import Protocol

from wattmesh.policies.decide import decide
from wattmesh.policies.decision import Decision, Observation, PlanView, RunView


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
    runs = tuple(replace(run, plan=plans.newest(seen, run)) for run in seen.runs)
    planned = replace(seen, runs=runs)
    return planned, decide(planned)
