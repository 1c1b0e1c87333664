"""One generation of a job: who trains in which layout, from which checkpoint, and why.

The records are published one after the other in the launch's store; every rank follows them in
order, so a rank that was parked learns everything from the record and the checkpoint.

Invariant: nothing that training depends on (step, samples, tokens) is kept by a parked rank.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.wire import Message


class Purpose(StrEnum):
    """Why a generation was begun."""

    START = "start"
    SWITCH = "switch"
    ROLLBACK = "rollback"
    OVER = "over"


class Outcome(StrEnum):
    """How a launch ended, when it ended in band."""

    DONE = "done"
    RESTART = "restart"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchNote(Message):
    """The switch that a generation carries out or undoes.

    Attributes:
        old_layout, old_ranks: where to go back to.
        began_s, boot: monotonic clock at the start of the boundary, and the boot it belongs to.
        evidence: seconds per phase and the probe so far.
        why: what went wrong, in the record of a rollback.
        to, reason: the ordered layout as it is shown, and why it was ordered.
    """

    plan: str
    epoch: int
    point: str
    old_layout: Layout
    old_ranks: tuple[int, ...]
    began_s: float
    boot: str
    evidence: dict[str, float | str] = field(default_factory=dict)
    why: str = ""
    to: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Message):
    """The record of one generation.

    Attributes:
        number: rises by one. `attempt`, `incarnation`: of the launch it belongs to.
        checkpoint: folder name of the checkpoint to load; "" starts from `build` alone.
        staged: where it lies while it is not durable (`background_fsync.py`); "" under its name.
        digest: the logical digest that memory must have after the load; "" is not known.
        probe: loss of the fixed batch before; None is not known.
        outcome: set when `purpose` is OVER: nobody trains any more in this launch.
    """

    number: int
    purpose: Purpose
    run: str
    incarnation: str
    attempt: int
    layout: Layout
    ranks: tuple[int, ...]
    checkpoint: str = ""
    staged: str = ""
    step: int = 0
    samples: int = 0
    tokens: int = 0
    digest: str = ""
    probe: float | None = None
    switch: SwitchNote | None = None
    outcome: Outcome | None = None
    detail: str = ""

    @property
    def position(self) -> Position:
        """Where training stands at the start of this generation."""
        return Position(step=self.step, samples=self.samples, tokens=self.tokens)

    @property
    def retreats(self) -> bool:
        """Whether there is a layout to go back to when this one does not stand."""
        return self.switch is not None and self.purpose is not Purpose.ROLLBACK

    @property
    def leader(self) -> int:
        """The global rank that speaks and decides for this generation: its lowest."""
        return min(self.ranks)
