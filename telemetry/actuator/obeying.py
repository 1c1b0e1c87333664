"""`--obey`: root assigns this node to another controller's journal, with or without an actuator.

Invariant: only root may; obligations stay in force, and the assignment is on disk before success is
reported.
"""

from contextlib import closing

from wattmesh.errors import InputInvalid, Refused
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.actuator.journal import ActuatorJournal, InUse
from wattmesh.telemetry.actuator.rules.fence import handed
from wattmesh.telemetry.actuator.settings import ActuatorSettings
from wattmesh.telemetry.desired import read_epoch, read_identity


def hand_over(settings: ActuatorSettings, target: str) -> str:
    """Make this node obey one journal and no other.

    Args:
        settings: the `[actuator]` table.
        target: `JOURNAL:EPOCH`, as `wattmesh status` prints it; without `:EPOCH` from 0 on.

    Returns:
        one sentence that says what was done.

    Raises:
        InputInvalid: `target` names no journal. Refused: only root may, or the journal is damaged.
        RetryLater: the disk fails, or the running actuator does not answer.
    """
    journal, epoch = read_target(target)
    try:
        own = ActuatorJournal.open(settings.journal)
    except InUse:
        ActuatorClient(settings.socket).obey(journal, epoch)
    else:
        with closing(own):
            if own.memory.damaged:
                raise Refused(
                    f"{settings.journal} is damaged: start the actuator, which gives every GPU "
                    "back and writes it anew, then run this again"
                )
            own.hear(handed(own.memory.heard, journal, epoch))
    return (
        f"this node obeys journal {journal} from epoch {epoch} on, and no other; caps that were "
        "ordered before stand until their own end (`wattmesh restore-all --obligations` lifts them)"
    )


def read_target(text: str) -> tuple[str, int]:
    """Read `JOURNAL:EPOCH`.

    Raises:
        InputInvalid: it is neither that nor a journal alone.
    """
    name, _, number = text.partition(":")
    if not name or (number and not (number.isascii() and number.isdecimal() and len(number) < 12)):
        raise InputInvalid(f"{text[:80]!r} is no JOURNAL:EPOCH; copy it from `wattmesh status`")
    return read_identity(name), read_epoch(int(number or 0))
