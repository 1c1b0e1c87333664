"""What wattmesh asks of a launcher: to hold a run's next launch before the present one leaves.

The next launch may begin in another size, or later: a launcher that holds it until then is the
alarm clock of a run that sleeps, and needs nobody of ours to be alive.

Every call runs under the job's own user, takes at most the limit that its queue was made with, and
may be repeated after any crash: it looks for what an earlier call with the same key did. Invariant:
of two launches with the same key at most one ever starts, and none before the launch that queued it
has ended.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLaunch:
    """The launch that is to follow the present one.

    Attributes:
        key: id of the switch, or of the suspension, that it belongs to.
        run: the run's id.
        ranks: how many ranks it starts.
        begins_at: it does not begin earlier; None: as soon as the present launch has ended.
        begins_by: it is of no use later. A launcher that knows that it cannot begin by then, as
            its nodes are out of service or reserved, refuses it; None: any time will do.
    """

    key: str
    run: str
    ranks: int
    begins_at: datetime | None = None
    begins_by: datetime | None = None


class HeldState(StrEnum):
    """What a launcher says of a launch that it was given to hold.

    WITHDRAWN: it ended before it started, whoever ended it, so nothing wakes the run.
    """

    HELD = "held"
    STARTED = "started"
    ENDED = "ended"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLaunch:
    """A next launch, as its launcher knows it.

    Attributes:
        name: how people find it at the launcher, for example "Slurm job 4711 of alps".
        begins_at: when it may begin; None: when the present launch has ended.
    """

    key: str
    name: str
    state: HeldState
    begins_at: datetime | None = None


class LaunchQueue(Protocol):
    """A launcher that holds next launches.

    It starts them by itself, so that the supervisor that queued one may end.

    Every method raises `SourceUnavailable` if the launcher does not answer within the limit, so
    that what it did is not known, and `InputInvalid` if it refuses, with its own words.
    """

    def find(self, key: str) -> HeldLaunch | None:
        """Return the launch that was queued under a key; None if there never was one."""
        ...

    def hold(self, following: NextLaunch) -> HeldLaunch:
        """Queue a launch; an earlier one with the same key is returned as it is."""
        ...

    def withdraw(self, key: str) -> bool:
        """Make sure that a held launch never starts; False if it has started already."""
        ...

    def begin_now(self, key: str) -> HeldLaunch:
        """Let a held launch begin as soon as the present one has ended and there is room."""
        ...
