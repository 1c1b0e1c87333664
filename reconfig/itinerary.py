"""Walks a run through a list of layouts, one order at a time. Pure.

`configs profile` does it from outside the job, `attach-check` from inside.

Invariant: the next order comes only after the last switch has ended, successfully or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import FINAL
from wattmesh.reconfig.wire.messages import Order, Transition

EPOCH = 1


@dataclass(slots=True, kw_only=True)
class Itinerary:
    """The state of a walk.

    Attributes:
        layouts: in order, each on the first ranks.
        steps_each: steps in each layout before the next one is ordered.
        next: index of the next layout; past the last one at the end of the walk.
        since: step of the last switch or failed switch.
    """

    layouts: Sequence[Layout]
    steps_each: int
    next: int = 0
    since: int = 0

    @property
    def over(self) -> bool:
        """Tell whether every layout was ordered and each switch has ended."""
        return self.next >= len(self.layouts)

    def order(
        self, *, run: str, attempt: int, point: str, reason: str, late_steps: int
    ) -> Order | None:
        """Return the order for the next layout; None at the end of the walk.

        Args:
            run: its UUID.
            attempt: of its launch.
            point: text in the order.
            reason: text in the order.
            late_steps: number of steps for which the order stays valid.
        """
        if self.over:
            return None
        layout, step = self.layouts[self.next], self.since + self.steps_each
        return Order(
            switch_id=self._switch_id,
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
        """Process a report; tell whether it ended the last ordered switch."""
        if self.over or message.state not in FINAL or message.switch_id != self._switch_id:
            return False
        self.since = message.step
        self.skip()
        return True

    def skip(self) -> None:
        """Go on to the layout after the next one."""
        self.next += 1

    @property
    def _switch_id(self) -> str:
        return f"walk-{self.next}"
