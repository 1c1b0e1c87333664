"""How long each phase of a rank's life may last before its watchdog ends the process.

Invariant: every moment of a rank belongs to exactly one phase, and every phase but `PARKED` ends
by itself within its deadline, without asking a process group that may hang. A parked rank ends when
the store is silent.
"""

from dataclasses import dataclass, fields
from enum import StrEnum

from wattmesh.errors import InputInvalid


class Phase(StrEnum):
    """What a rank is doing, as failure sentences name it."""

    TRAIN = "train"
    AGREE = "agree"
    SAVE = "save"
    TEARDOWN = "teardown"
    REBUILD = "rebuild"
    LOAD = "load"
    VERIFY = "verify"
    WAKE = "wake"
    PARKED = "parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds per phase and rank; generous defaults, since a false alarm costs a restart.

    Attributes:
        train_s: between two calls into the session while training. It bounds a hung collective and
            must be longer than the longest step or evaluation: an hour of it is normal.
        wake_s: for a woken or newly launched rank, until the next generation is announced to it.
        leave_s: how long ranks may take to get out of a phase in which a peer failed, before they
            are ended; also the grace for peers that were told to end.
        silence_s: how long another rank's watchdog, or the launch's store, may say nothing. It
            bounds what a lost host costs, from which no connection breaks.
    """

    train_s: float = 7200.0
    agree_s: float = 120.0
    save_s: float = 900.0
    teardown_s: float = 120.0
    rebuild_s: float = 600.0
    load_s: float = 900.0
    verify_s: float = 300.0
    wake_s: float = 600.0
    leave_s: float = 5.0
    silence_s: float = 300.0

    def __post_init__(self) -> None:
        """Refuse deadlines that are already over."""
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise InputInvalid(
                    f"deadlines: {each.name} = {getattr(self, each.name)} must be > 0"
                )

    def of(self, phase: Phase) -> float:
        """Seconds that `phase` may last; infinity while parked."""
        if phase is Phase.PARKED:
            return float("inf")
        return float(getattr(self, f"{phase.value}_s"))

    @property
    def longest_s(self) -> float:
        """The longest of all, which process groups get as their own timeout, behind ours."""
        return max(self.of(phase) for phase in Phase if phase is not Phase.PARKED)
