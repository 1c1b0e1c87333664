"""The grid ahead, as the runs of one observation share it. Pure.

Every run looks at the same slots from now on, and at no others but the one in which its own time
ends. What they have in common is worked out when the first of them needs it.

Invariant: a run's numbers are what they would be if it were alone, to the last bit.
"""

from datetime import datetime

from wattmesh.policies.decision import Observation
from wattmesh.policies.horizon import Horizon, SlotsAhead
from wattmesh.policies.planner.grid import JoinedSlots
from wattmesh.policies.rules.shared_steps import SharedSteps


class SharedGrid:
    """Made for one observation, and used by one thread."""

    def __init__(self, seen: Observation) -> None:
        """Work out nothing yet."""
        self._seen = seen
        self._ahead: SlotsAhead | None = None
        self._steps = SharedSteps(())
        self.joined = JoinedSlots()

    def to_end(self, end: datetime) -> Horizon:
        """Give the intensity from now to a moment (`horizon.to_end`)."""
        if self._ahead is None:
            carbon, now = self._seen.carbon, self._seen.now
            deadlines = [run.deadline for run in self._seen.runs if run.deadline is not None]
            furthest = max(deadlines, default=None)
            self._ahead = SlotsAhead(carbon.slots, now, carbon.climatology, furthest)
        found = self._ahead.to_end(end)
        if self._steps.slots is not self._ahead.shared:
            self._steps = SharedSteps(self._ahead.shared)
        return found

    @property
    def steps(self) -> SharedSteps:
        """The steps of price rules over the slots that were given out."""
        return self._steps
