"""A schedule of switches, passed to a real session like the daemon's orders. Torch-free.

    session = attach(..., reporter=Script(turns))

Invariant: the schedule is a pure function of the step, so every rank knows it, and a relaunched job
continues at its checkpoint's step.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import FINAL, SwitchState
from wattmesh.reconfig.wire.messages import Finish, Order, Orders, Progress, SwitchMode, Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One switch, at the boundary of step `step`, to `layout` on the first ranks."""

    step: int
    layout: Layout

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that train afterwards; always with rank 0, which holds the schedule."""
        return tuple(range(self.layout.world_size))


class Script:
    """A reporter that orders the switches of its schedule and records the job's reports."""

    def __init__(
        self, turns: Iterable[Turn], *, restart: Callable[[], bool] = lambda: False
    ) -> None:
        """Take the schedule; of two turns at one step the later one counts.

        Args:
            turns: the switches.
            restart: called on global rank 0 when a turn is due; True switches by restart, so that a
                long script can run in several launches.
        """
        self._restart = restart
        self._turns = {turn.step: turn for turn in sorted(turns, key=lambda each: each.step)}
        self._now: Progress | None = None
        self.transitions: list[Transition] = []

    def turn(self, step: int) -> Turn | None:
        """Return the switch at the boundary of `step`, if any."""
        return self._turns.get(step)

    def progress(self, message: Progress) -> None:
        """Remember the run and its step."""
        self._now = message

    def transition(self, message: Transition) -> None:
        """Record a transition of a switch."""
        self.transitions.append(message)

    def finish(self, message: Finish) -> None:
        """Do nothing at the end."""

    def orders(self) -> Orders:
        """Order the switch at the last reported step."""
        now = self._now
        turn = self.turn(now.step) if now else None
        if now is None or turn is None:
            return Orders()
        order = Order(
            switch_id=f"script-{now.attempt}-{turn.step}",
            epoch=1,
            run=now.run,
            attempt=now.attempt,
            point=str(turn.layout),
            layout=turn.layout,
            ranks=turn.ranks,
            not_before_step=turn.step,
            valid_until_step=turn.step,
            mode=SwitchMode.RESTART if self._restart() else SwitchMode.IN_PLACE,
            reason="the script says so",
        )
        return Orders(order=order, epoch=1)

    def pump(self) -> None:
        """Do nothing: there are no messages to send."""

    def close(self, patience_s: float) -> None:
        """Do nothing: there are no messages left."""

    def ends(self) -> list[tuple[int, SwitchState, str]]:
        """List how every switch ended: step, state, and the reason of a rollback."""
        return [
            (each.step, each.state, each.detail) for each in self.transitions if each.state in FINAL
        ]


def every_ordered_pair(count: int) -> list[int]:
    """Walk from 0 through `count` places so that every ordered pair occurs exactly once.

    This is an Euler circuit of the complete directed graph, found by Hierholzer's algorithm.

    Returns:
        `count * (count - 1) + 1` places, the first and last of them 0.

    Raises:
        InputInvalid: fewer than two places.
    """
    if count < 2:
        raise InputInvalid(f"equivalence: a walk over pairs needs two layouts, got {count}")
    left = {place: [other for other in range(count) if other != place] for place in range(count)}
    path, found = [0], []
    while path:
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            found.append(path.pop())
    return found[::-1]


def random_walk(count: int, switches: int, *, seed: int) -> list[int]:
    """Walk from 0 through `count` places at random, by a seed, never staying."""
    draw = random.Random(seed)
    walk = [0]
    for _ in range(switches):
        walk.append(draw.choice([place for place in range(count) if place != walk[-1]]))
    return walk


def turns_of(walk: Sequence[int], layouts: Sequence[Layout], *, every: int) -> list[Turn]:
    """Convert a walk to a schedule: `every` steps in each layout, then a switch to the next."""
    return [
        Turn(step=every * number, layout=layouts[place])
        for number, place in enumerate(walk)
        if number
    ]
