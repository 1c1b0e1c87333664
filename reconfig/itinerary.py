"""Layouts that one run is walked through, one order at a time. Pure.

`configs profile` walks a job so from outside, `attach-check` from inside the job.

Invariant: the next order comes only after the last switch has ended, well or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import FINAL
from wattmesh.reconfig.wire import Order, Transition

EPOCH = 1


@dataclass(slots=True, kw_only=True)
class Itinerary:
    """Where a walk stands.

    Attributes:
        layouts: to be trained in, in this order, each on the first ranks.
        steps_each: steps in each before the next one is ordered.
        next: index of the layout that comes next; past the last one when the walk is over.
        since: step at which the layout before it began, or was given up.
    """

    layouts: Sequence[Layout]
    steps_each: int
    next: int = 0
    since: int = 0

    @property
    def over(self) -> bool:
        """Whether every layout was ordered, and each switch has ended."""
        return self.next >= len(self.layouts)

    def order(
        self, *, run: str, attempt: int, point: str, reason: str, late_steps: int
    ) -> Order | None:
        """Give the order for the next layout; None when the walk is over.

        Args:
            run: its UUID.
            attempt: of its launch.
            point: said in the order.
            reason: likewise.
            late_steps: for so many steps the order stays good.
        """
        if self.over:
            return None
        layout, step = self.layouts[self.next], self.since + self.steps_each
        return Order(
            plan=self._plan,
            epoch=EPOCH,
            run=run,
            attempt=attempt,
            point=point,
            layout=layout,
            ranks=tuple(range(layout.world_size)),
            not_before_step=step,
            valid_until_step=step + late_steps,
            reason=reason,
        )

    def ended(self, message: Transition) -> bool:
        """Take note of a report; say whether it ended the switch that was ordered last."""
        if self.over or message.state not in FINAL or message.plan != self._plan:
            return False
        self.since = message.step
        self.skip()
        return True

    def skip(self) -> None:
        """Have done with the layout that comes next, or leave it out."""
        self.next += 1

    @property
    def _plan(self) -> str:
        return f"walk-{self.next}"
