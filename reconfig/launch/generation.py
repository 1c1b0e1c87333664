"""One generation of a job: who trains in which layout, from which checkpoint, and why.

The records are published one after the other in the launch's store. Every rank follows them in
order, so a rank that was parked learns everything from the record and the checkpoint.

Invariant: a parked rank keeps nothing that training depends on (step, samples, tokens).
"""

from dataclasses import dataclass, field
from enum import StrEnum

from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.placement import Placement
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.wire.messages import Message


class Purpose(StrEnum):
    """Why a generation was begun."""

    START = "start"
    SWITCH = "switch"
    ROLLBACK = "rollback"
    OVER = "over"


class Outcome(StrEnum):
    """How a launch ended, if it ended at a boundary."""

    DONE = "done"
    RESTART = "restart"
    SUSPENDED = "suspended"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchNote(Message):
    """The switch that a generation carries out or undoes.

    Attributes:
        old_layout, old_ranks, old_placement: where a rollback returns to.
        began_s, boot: monotonic clock at the start of the boundary, and the boot it belongs to.
        evidence: what was measured so far: seconds per phase, probe losses, digests.
        why: what went wrong, in the record of a rollback.
        to, reason: the ordered layout as shown to people, and why it was ordered.
    """

    switch_id: str
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
    old_placement: Placement = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Message):
    """The record of one generation.

    Attributes:
        number: rises by one from each generation to the next.
        attempt, incarnation: of the launch it belongs to.
        checkpoint: folder name of the checkpoint to load; "" starts from `build` alone.
        staged: staging folder of that checkpoint while it is not durable (`background_fsync.py`);
            "" once it is published.
        digest: the logical digest that memory must have after the load; "" if not known.
        probe: loss of the fixed batch before the switch; None if not known.
        placement: of the experts; () in order of number.
        outcome: set when `purpose` is OVER: training in this launch has ended.
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
    placement: Placement = ()

    @property
    def position(self) -> Position:
        """Where training stands at the start of this generation."""
        return Position(step=self.step, samples=self.samples, tokens=self.tokens)

    @property
    def retreats(self) -> bool:
        """Whether the ranks can go back to the previous layout if this generation fails."""
        return self.switch is not None and self.purpose is not Purpose.ROLLBACK

    @property
    def leader(self) -> int:
        """The global rank that decides and reports for this generation: the lowest one."""
        return min(self.ranks)
