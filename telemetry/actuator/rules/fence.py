"""Whom the actuator obeys: one journal, and in it nobody older than who was heard last. Pure.

The first journal that is heard is taken; from then on another one is refused, whatever its epoch,
until root hands the actuator over (docs/decisions/0030). Invariant: an epoch never falls, and rises
by at most `MOST_RISE` in `RISE_S`, so that one wrong number cannot shut out who leads for ever.
"""

from dataclasses import dataclass, replace

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.actuator.rules.leases import Heard
from wattmesh.telemetry.desired import HIGHEST_EPOCH, Desired

MOST_RISE = 1000
"""In one window. An epoch rises by one when another daemon takes the lead, and a lease lasts
seconds: a thousand in an hour is a mistake, or somebody who wants to shut the others out."""

RISE_S = 3600.0

CONFIG = "/etc/wattmesh/wattmesh.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The epoch from which a rise is counted, and since when (seconds since boot)."""

    since_s: float = float("-inf")
    epoch: int = -1

    def now(self, now_s: float, epoch: int) -> "Anchor":
        """Count on; anew from `epoch` when the window is over, or where there was none."""
        counting = self.epoch >= 0 and now_s < self.since_s + RISE_S
        return self if counting else Anchor(since_s=now_s, epoch=epoch)

    @property
    def highest(self) -> int:
        """Give the highest epoch that is taken; any, before one was heard."""
        return HIGHEST_EPOCH if self.epoch < 0 else self.epoch + MOST_RISE


def refusal(desired: Desired, known: Heard, anchor: Anchor) -> str:
    """Say why a wish is not even read, and what to do; "" when it is.

    Args:
        desired: the wish.
        known: what this node has heard.
        anchor: where the present window of rises began.
    """
    journal, epoch = desired.journal, desired.epoch
    if known.journal and journal != known.journal:
        whose = f"of journal {journal}" if journal else "by a controller older than identities"
        step = f"if it took the place of that one, {hand_over(journal, epoch)}"
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


def handed(heard: Heard, journal: str, epoch: int) -> Heard:
    """Give what is heard once this node is handed to a journal, from `epoch` on.

    Raises:
        InputInvalid: no journal is named.
    """
    if not journal:
        raise InputInvalid("name the journal to obey, as `wattmesh status` does")
    return replace(heard, journal=journal, epoch=epoch)


def hand_over(journal: str, epoch: int) -> str:
    """Say what root runs on a node, so that it obeys a journal from an epoch on."""
    return f"run there as root `wattmesh actuator --config {CONFIG} --obey {journal}:{epoch}`"
