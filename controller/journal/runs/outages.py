"""Outages that nobody ordered, from a run's own launches: how much of its time it stood in them.

Invariant: a restart that we asked for is no outage; a history of less than a day counts as a day,
so that the first outage of a young run does not pass for its habit.
"""

from datetime import datetime
from itertools import pairwise

from sqlalchemy import bindparam, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import INCARNATIONS
from wattmesh.controller.journal.database.values import to_us
from wattmesh.controller.journal.runs.stays import RESTART

DAY_US = 86_400_000_000
MOST = 0.5
"""A run that stands more often than not needs a person, and no better estimate."""

_LAUNCHES = (
    select(
        INCARNATIONS.c.attempt,
        INCARNATIONS.c.started_at,
        INCARNATIONS.c.ended_at,
        INCARNATIONS.c.end_reason,
    )
    .where(INCARNATIONS.c.run == bindparam("which"))
    .order_by(INCARNATIONS.c.started_at)
)


class OutageStore:
    """Reads the table of incarnations."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def last(self, run: str) -> int:
        """Give the attempt of the newest launch that nobody of us ordered; 0: there was none."""
        with self._database.reading() as connection:
            launches = connection.execute(_LAUNCHES, {"which": run}).all()
        after = (
            each.attempt for before, each in pairwise(launches) if before.end_reason != RESTART
        )
        return max(after, default=0)

    def share(self, run: str, now: datetime) -> float:
        """Give the share of its time that a run stood between two launches, in [0, 0.5]."""
        with self._database.reading() as connection:
            launches = connection.execute(_LAUNCHES, {"which": run}).all()
        stood_us: int = sum(
            max(0, after.started_at - before.ended_at)
            for before, after in pairwise(launches)
            if before.ended_at is not None and before.end_reason != RESTART
        )
        if not stood_us:
            return 0.0
        known_us: int = max(DAY_US, to_us(now) - launches[0].started_at)
        return min(MOST, stood_us / known_us)
