"""Which controller the actuator obeys: one journal's, and none with an older epoch. Pure.

The first journal that is heard is adopted; any other is refused, whatever its epoch, until root
assigns the node to it (docs/decisions/0030). Invariant: an epoch never falls, and rises by at most
`MOST_RISE` in `RISE_S`, so that one wrong number cannot lock out the leader for ever.
"""

from dataclasses import dataclass, replace

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.actuator.rules.leases import ControllerWishes
from wattmesh.telemetry.desired import HIGHEST_EPOCH, Desired

MOST_RISE = 1000
"""Epochs per window. A change of leader raises the epoch by one, and a leader's lease lasts
seconds: a thousand in an hour is a mistake or an attack."""

RISE_S = 3600.0

CONFIG = "/etc/wattmesh/wattmesh.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The epoch from which a rise is counted, and when that window began (s since boot)."""

    since_s: float = float("-inf")
    epoch: int = -1

    def now(self, now_s: float, epoch: int) -> "Anchor":
        """Keep the window while it lasts, else begin one at `epoch`."""
        counting = self.epoch >= 0 and now_s < self.since_s + RISE_S
        return self if counting else Anchor(since_s=now_s, epoch=epoch)

    @property
    def highest(self) -> int:
        """The highest epoch that is accepted; any, before one was heard."""
        return HIGHEST_EPOCH if self.epoch < 0 else self.epoch + MOST_RISE


def refusal(desired: Desired, known: ControllerWishes, anchor: Anchor) -> str:
    """Say why a wish is refused unread, and what to do; "" when it is read.

    Args:
        desired: the wish.
        known: what this node has heard.
        anchor: the present window of rises.
    """
    journal, epoch = desired.journal, desired.epoch
    if known.journal and journal != known.journal:
        whose = (
            f"of journal {journal}" if journal else "from a controller too old to name its journal"
        )
        step = f"if it replaces that one, {hand_over(journal, epoch)}"
        return (
            f"this node obeys journal {known.journal}, the wish is {whose}: "
            f"{step if journal else 'install this version of wattmesh on the controller too'}"
        )
    if epoch < known.epoch:
        return (
            f"epoch {epoch} of the wish is older than {known.epoch}, which this node has heard: "
            "another controller leads now. If none does, see docs/operations.md, Backup and restore"
        )
    if epoch > anchor.highest:
        return (
            f"epoch {epoch} of the wish is more than {MOST_RISE} above {anchor.epoch}, which this "
            f"node had heard {RISE_S / 3600:g} h ago at most: if it is right, "
            f"{hand_over(journal, epoch)}"
        )
    return ""


def handed(heard: ControllerWishes, journal: str, epoch: int) -> ControllerWishes:
    """Return the state once this node is assigned to a journal, from `epoch` on.

    Raises:
        InputInvalid: no journal is named.
    """
    if not journal:
        raise InputInvalid("name the journal to obey, as `wattmesh status` does")
    return replace(heard, journal=journal, epoch=epoch)


def hand_over(journal: str, epoch: int) -> str:
    """The command that assigns a node to a journal, as part of a sentence."""
    return f"run there as root `wattmesh actuator --config {CONFIG} --obey {journal}:{epoch}`"
