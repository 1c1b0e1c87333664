"""Signs of life of runs: heard at once, written to the journal at intervals.

Invariant: a sign of life is taken only from the owner and from the newest launch, as the memory of
`liveness` or the journal knows them.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import INCARNATIONS, RUNS
from wattmesh.controller.journal.database.values import from_us, to_us
from wattmesh.controller.journal.runs.liveness import Liveness, Sign
from wattmesh.controller.journal.runs.run_store import speaking
from wattmesh.reconfig.wire.messages import Heartbeat, Transition

_ONE = select(RUNS).where(RUNS.c.run == bindparam("which"))
_LIVED = (
    update(RUNS)
    .where(RUNS.c.run == bindparam("which"))
    .where(RUNS.c.incarnation == bindparam("launch"), RUNS.c.finish_reason == "")
    .values(last_seen_at=bindparam("seen_at"), phase=bindparam("doing"))
)
_LAUNCH_LIVED = (
    update(INCARNATIONS)
    .where(INCARNATIONS.c.incarnation == bindparam("launch"))
    .where(INCARNATIONS.c.ended_at.is_(None))
    .values(last_seen_at=bindparam("seen_at"))
)


class SignStore:
    """Takes signs of life, and writes them to the journal."""

    def __init__(self, database: Database, liveness: Liveness) -> None:
        """Keep the database, and the memory of signs between two writes."""
        self._database = database
        self._liveness = liveness

    def hear(
        self, message: Heartbeat | Transition, phase: str, *, owner_uid: int, now: datetime
    ) -> None:
        """Take a sign of life into memory; one after the launch's end is ignored.

        Raises:
            InputInvalid: no such run. Refused: another owner. Fenced: an older incarnation.
            JournalUnavailable: the launch is not in memory, and the journal does not answer.
        """
        if self.hear_again(message, phase, owner_uid=owner_uid, now=now):
            return
        with self._database.reading() as connection:
            found = connection.execute(_ONE, {"which": message.run}).one_or_none()
        row = speaking(found, message, owner_uid)
        if not row.finish_reason:
            sign = Sign.of(message, owner_uid, now, phase, from_us(row.last_seen_at))
            self._liveness.hear(message.run, sign)

    def hear_again(
        self, message: Heartbeat | Transition, phase: str, *, owner_uid: int, now: datetime
    ) -> bool:
        """Take a sign of life by memory alone; False when only the journal can tell whose it is."""
        return self._liveness.hear_again(
            message.run,
            message.incarnation,
            message.attempt,
            owner_uid=owner_uid,
            phase=phase,
            now=now,
        )

    def keep(self, now: datetime, *, everything: bool = False) -> int:
        """Write the signs of life that are due, in one transaction.

        Args:
            now: the wall clock.
            everything: write those that are not due yet, too: the daemon stops.

        Returns:
            How many runs were written.
        """
        due = self._liveness.unkept(now, everything=everything)
        if due:
            with self._database.writing() as connection:
                connection.execute(_LIVED, [_columns(run, sign) for run, sign in due])
                connection.execute(_LAUNCH_LIVED, [_columns(run, sign) for run, sign in due])
            self._liveness.mark_kept(due)
        return len(due)


def _columns(run: str, sign: Sign) -> dict[str, Any]:
    return {
        "which": run,
        "launch": sign.incarnation,
        "seen_at": to_us(sign.at),
        "doing": sign.phase,
    }
