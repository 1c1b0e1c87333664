"""Trains through a schedule in a real session, and compares the state around each switch.

    script = Script(turns)
    session = attach(..., reporter=script)
    train(session, script, train_step, notes)

Every rank of the job calls `train`; the results are in `notes` on global rank 0, which takes part
in every layout. The session's own checks (digests, probe) run as always; this is a second one that
shares no code with them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from wattmesh.reconfig.equivalence.gather import gather_whole, shard_again
from wattmesh.reconfig.equivalence.script import Script
from wattmesh.reconfig.equivalence.shelf import read_whole, write_whole
from wattmesh.reconfig.equivalence.verdict import Verdict
from wattmesh.reconfig.equivalence.whole import WholeState, round_trip
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State


class Step(Protocol):
    """The result of one optimizer step, equal on every rank."""

    @property
    def loss(self) -> float:
        """The loss of the global batch."""
        ...

    @property
    def tokens(self) -> int:
        """Consumed over all ranks."""
        ...

    @property
    def samples(self) -> int:
        """Consumed over all ranks."""
        ...


class TrainedSession(Protocol):
    """What is used of the session that `attach` returns."""

    @property
    def done(self) -> bool:
        """Whether training has ended."""
        ...

    @property
    def state(self) -> State:
        """What this rank trains with."""
        ...

    @property
    def generation(self) -> Generation:
        """The present generation."""
        ...

    @property
    def position(self) -> Position:
        """Where training stands."""
        ...

    def report(self, *, tokens: int, samples: int, loss: float) -> None:
        """Report one step."""
        ...

    def boundary(self) -> None:
        """Do what is due after a step."""
        ...


@dataclass(slots=True)
class Notes:
    """The results on global rank 0, and callbacks.

    Attributes:
        losses: by step.
        layouts: the layout each step was trained in.
        round_trips: V1 of every switch, by its step.
        shelf: a file for the state before a switch, so that switches by restart are compared too.
        gathered: called on global rank 0 with (step, state) before every switch.
        compared: called on global rank 0 with (step, verdict) after every switch.
        seen: called after every step with (step, loss, layout); for progress.
        meddle: called on every rank with the state right after the session verified a switch, so
            that a negative control can damage it.
        stepped: called on every rank after every step with (state, step), for collectives.
    """

    losses: dict[int, float] = field(default_factory=dict)
    layouts: dict[int, str] = field(default_factory=dict)
    round_trips: dict[int, Verdict] = field(default_factory=dict)
    shelf: Path | None = None
    gathered: Callable[[int, WholeState], None] = lambda step, whole: None
    compared: Callable[[int, Verdict], None] = lambda step, verdict: None
    seen: Callable[[int, float, str], None] = lambda step, loss, layout: None
    meddle: Callable[[State], None] = lambda state: None
    stepped: Callable[[State, int], None] = lambda state, step: None


def train(
    session: TrainedSession,
    script: Script,
    step: Callable[[State], Step],
    notes: Notes,
) -> None:
    """Train until the session is done. A collective call of all ranks of the job."""
    arrived = 0
    before: WholeState | None = None
    while not session.done:
        generation = session.generation
        if generation.number != arrived:
            arrived = generation.number
            if generation.switch is not None:
                shard_again(session.state)
                notes.meddle(session.state)
                _compare(session, before, notes)
        done = step(session.state)
        session.report(tokens=done.tokens, samples=done.samples, loss=done.loss)
        at = session.position.step
        notes.losses[at], notes.layouts[at] = done.loss, str(generation.layout)
        notes.stepped(session.state, at)
        notes.seen(at, done.loss, str(generation.layout))
        if script.turn(at) is not None:
            before = gather_whole(session.state)
            if before.arrays:
                notes.gathered(at, before)
                if notes.shelf is not None:
                    write_whole(notes.shelf, before)
        session.boundary()


def _compare(session: TrainedSession, before: WholeState | None, notes: Notes) -> None:
    after = gather_whole(session.state)
    if not after.arrays:
        return
    if before is None and notes.shelf is not None:
        before = read_whole(notes.shelf)
    if before is not None:
        step = session.position.step
        what = f"the switch to {session.generation.layout} at step {step}"
        notes.round_trips[step] = round_trip(before, after, what=what)
        notes.compared(step, notes.round_trips[step])
