"""What was learned of runs' expert costs: one text for each run, replaced with each count.

Invariant: a text and the sentence that tells of its change are there together, or neither is.
"""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import delete, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import EXPERT_LEARNING
from wattmesh.controller.journal.database.values import to_us, upsert
from wattmesh.controller.journal.events import Event, add_event
from wattmesh.controller.journal.leadership import check_epoch


class ExpertLearningStore:
    """The table of them; what a text means, `controller/expert_costs/kept.py` knows."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def keep(
        self, run: str, state: str, *, now: datetime, epoch: int, event: Event | None = None
    ) -> None:
        """Replace the text of a run, and say so with an event where something was told.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            row = {"run": run, "at": to_us(now), "state": state}
            upsert(connection, EXPERT_LEARNING, [row])
            if event is not None:
                add_event(connection, event, now)

    def all(self) -> dict[str, str]:
        """Give the text of each run that has one."""
        query = select(EXPERT_LEARNING.c.run, EXPERT_LEARNING.c.state)
        with self._database.reading() as connection:
            return {row.run: row.state for row in connection.execute(query)}

    def forget(self, runs: Collection[str], *, epoch: int) -> None:
        """Delete the texts of runs that have ended.

        Raises:
            Fenced: another daemon leads by now; nothing was deleted.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            for run in runs:
                connection.execute(delete(EXPERT_LEARNING).where(EXPERT_LEARNING.c.run == run))
