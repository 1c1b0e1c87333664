"""How long a wish holds: the two kinds of leases, on clocks that nobody can step. Pure.

Every end is on the boot clock (CLOCK_BOOTTIME: never stepped, counts while the machine sleeps). An
obligation's end is given in wall time; it is turned into boot time once, when it is heard, so that
a wall clock stepped later neither ends nor prolongs it. Over a reboot only the wall clock is left:
the rest is what it says, but never more than was left when the lease was heard.

Invariant: an economy lease ends `lease_s` after it was last heard and never outlives our process;
an obligation is kept until its own end, or until a wish for the node leaves it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from wattmesh.telemetry.desired import Desired, LeaseKind, Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Now, on both clocks. `boot_id` names the boot that `boot_s` (seconds) counts from."""

    wall: datetime
    boot_s: float
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A wish and its end. `left_s`: what was left of it when it was heard."""

    wish: Wish
    ends_s: float
    boot_id: str
    left_s: float

    def live(self, now: Moment) -> bool:
        """Say whether it still holds."""
        return now.boot_s < self.ends_s

    def after_boot(self, now: Moment) -> "Lease":
        """Give the same lease on this boot's clock."""
        if self.boot_id == now.boot_id or self.wish.until is None:
            return self
        left_s = min((self.wish.until - now.wall).total_seconds(), self.left_s)
        return replace(self, ends_s=now.boot_s + left_s, boot_id=now.boot_id, left_s=left_s)


Leases = Mapping[tuple[str, LeaseKind], Lease]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What is wished for this node.

    Attributes:
        epoch: the highest ever heard; lower ones are refused.
        leases: by GPU and kind; ended ones may still be among them.
    """

    epoch: int = -1
    leases: Leases = field(default_factory=dict)

    def hear(self, desired: Desired, now: Moment) -> "Heard":
        """Take a whole wish over; what it leaves out is no longer wished. Check the epoch first."""
        leases: dict[tuple[str, LeaseKind], Lease] = {}
        for wish in desired.wishes:
            key = (wish.gpu_uuid, wish.kind)
            known = self.leases.get(key)
            if wish.until is not None and known is not None and known.wish == wish:
                leases[key] = known  # its end was fixed when it was first heard
            else:
                leases[key] = _begin(wish, now)
        return Heard(epoch=desired.epoch, leases=leases)

    def live(self, now: Moment) -> "Heard":
        """Leave out what has ended."""
        live = {key: each for key, each in self.leases.items() if each.live(now)}
        return self if len(live) == len(self.leases) else replace(self, leases=live)

    def obligations(self) -> "Heard":
        """Leave out economy."""
        kept = {k: each for k, each in self.leases.items() if k[1] is LeaseKind.OBLIGATION}
        return replace(self, leases=kept)

    def after_boot(self, now: Moment) -> "Heard":
        """Put every lease on this boot's clock."""
        moved = {key: each.after_boot(now) for key, each in self.leases.items()}
        return replace(self, leases=moved)

    def wish(self, gpu_uuid: str, kind: LeaseKind) -> Wish | None:
        """Give a GPU's wish of a kind."""
        lease = self.leases.get((gpu_uuid, kind))
        return lease.wish if lease else None


def _begin(wish: Wish, now: Moment) -> Lease:
    """Fix the end of a wish that is heard now."""
    if wish.until is not None:
        left_s = (wish.until - now.wall).total_seconds()
    else:
        left_s = wish.lease_s or 0.0
    return Lease(wish=wish, ends_s=now.boot_s + left_s, boot_id=now.boot_id, left_s=left_s)
