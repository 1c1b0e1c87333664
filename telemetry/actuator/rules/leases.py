"""How long a wish lasts: the two kinds of leases, on a clock that is never stepped. Pure.

Every end is on CLOCK_BOOTTIME, which is never stepped and counts while the machine sleeps. An
obligation's end is given in wall time and converted once, when it is received, so that a later step
of the wall clock neither ends nor prolongs it. After a reboot only the wall clock is left: it
decides, but never prolongs a lease beyond what was left when it was received.

Invariant: an economy lease ends `lease_s` after it was last renewed and never outlives our process;
an obligation lasts until its own end, or until new wishes for the node leave it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from wattmesh.telemetry.desired import Desired, LeaseKind, Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class BootTime:
    """Now, on both clocks. `boot_id` names the boot that `boot_s` (seconds) counts from."""

    wall: datetime
    boot_s: float
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WishLease:
    """A wish and its end.

    Attributes:
        ends_s: its end on the boot clock.
        left_s: how long it had left when it was received.
        journal: identity of the journal it came from; "": not known.
    """

    wish: Wish
    ends_s: float
    boot_id: str
    left_s: float
    journal: str = ""

    def live(self, now: BootTime) -> bool:
        """Tell whether it has not ended."""
        return now.boot_s < self.ends_s

    def after_boot(self, now: BootTime) -> "WishLease":
        """Convert it to this boot's clock."""
        if self.boot_id == now.boot_id or self.wish.until is None:
            return self
        left_s = min((self.wish.until - now.wall).total_seconds(), self.left_s)
        return replace(self, ends_s=now.boot_s + left_s, boot_id=now.boot_id, left_s=left_s)


Leases = Mapping[tuple[str, LeaseKind], WishLease]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerWishes:
    """What a controller wishes for this node.

    Attributes:
        epoch: the highest one received from that journal; lower ones are refused.
        leases: by GPU and kind; some may have ended.
        journal: identity of the one journal that is obeyed; "": none was heard yet.
    """

    epoch: int = -1
    leases: Leases = field(default_factory=dict)
    journal: str = ""

    def hear(self, desired: Desired, now: BootTime) -> "ControllerWishes":
        """Replace all wishes: what `desired` leaves out is no longer wished.

        Check `fence` first.

        Only obligations from the journal that was obeyed before stay until their own end: the
        controller that replaced it may not know of them.
        """
        leases: dict[tuple[str, LeaseKind], WishLease] = {}
        for wish in desired.wishes:
            key = (wish.gpu_uuid, wish.kind)
            known = self.leases.get(key)
            if wish.until is not None and known is not None and known.wish == wish:
                # Its end was fixed when it was first received.
                leases[key] = replace(known, journal=desired.journal)
            else:
                leases[key] = replace(begin(wish, now), journal=desired.journal)
        for key, each in self.obligations().leases.items():
            if each.journal not in ("", desired.journal):
                leases.setdefault(key, each)
        return ControllerWishes(epoch=desired.epoch, leases=leases, journal=desired.journal)

    def live(self, now: BootTime) -> "ControllerWishes":
        """Leave out leases that have ended."""
        live = {key: each for key, each in self.leases.items() if each.live(now)}
        return self if len(live) == len(self.leases) else replace(self, leases=live)

    def obligations(self) -> "ControllerWishes":
        """Leave out economy leases."""
        kept = {k: each for k, each in self.leases.items() if k[1] is LeaseKind.OBLIGATION}
        return replace(self, leases=kept)

    def within(self, longest_s: float, now: BootTime) -> "ControllerWishes":
        """Shorten every lease to end within `longest_s` from now."""
        cut = {
            key: replace(
                each,
                left_s=min(each.left_s, longest_s),
                ends_s=min(each.ends_s, now.boot_s + longest_s),
            )
            for key, each in self.leases.items()
        }
        return replace(self, leases=cut)

    def after_boot(self, now: BootTime) -> "ControllerWishes":
        """Convert every lease to this boot's clock."""
        moved = {key: each.after_boot(now) for key, each in self.leases.items()}
        return replace(self, leases=moved)

    def wish(self, gpu_uuid: str, kind: LeaseKind) -> Wish | None:
        """Return a GPU's wish of one kind."""
        lease = self.leases.get((gpu_uuid, kind))
        return lease.wish if lease else None


def begin(wish: Wish, now: BootTime) -> WishLease:
    """Fix the end of a wish that is received now."""
    if wish.until is not None:
        left_s = (wish.until - now.wall).total_seconds()
    else:
        left_s = wish.lease_s or 0.0
    return WishLease(wish=wish, ends_s=now.boot_s + left_s, boot_id=now.boot_id, left_s=left_s)
