"""How long each phase of a rank's life may last before its watchdog ends the process.

Invariant: a rank is in exactly one phase at any moment. Every phase but `PARKED` is ended at its
deadline without a call to a process group, which may hang. A parked rank is ended when the store is
silent.
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
            must be longer than the longest step or evaluation; an evaluation of an hour is normal.
        wake_s: for a woken or newly launched rank, until the next generation is announced.
        leave_s: how long ranks may take to leave a phase in which a peer failed, before they are
            ended; also the grace for peers that were told to end.
        hold_s: how long the launcher may take to say that it holds the next launch of a run that is
            to sleep; training waits meanwhile, in the phase `SAVE`.
        silence_s: how long another rank's watchdog, or the launch's store, may be silent. It bounds
            the time lost with a host that vanishes, because its connections do not break.
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
    hold_s: float = 120.0
    silence_s: float = 300.0

    def __post_init__(self) -> None:
        """Check that every deadline is above 0."""
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise InputInvalid(
                    f"deadlines: {each.name} = {getattr(self, each.name)} must be > 0"
                )

    def of(self, phase: Phase) -> float:
        """Return the seconds that `phase` may last; infinity while parked."""
        if phase is Phase.PARKED:
            return float("inf")
        return float(getattr(self, f"{phase.value}_s"))

    @property
    def longest_s(self) -> float:
        """The longest deadline; process groups get it as their timeout, as a second limit."""
        return max(self.of(phase) for phase in Phase if phase is not Phase.PARKED)
