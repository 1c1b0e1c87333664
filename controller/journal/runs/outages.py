"""Outages that nobody ordered, from a run's launches: the share of its time that it stood still.

Invariant: a restart or a sleep that we asked for is no outage; a history of less than a day counts
as a day, so that one outage of a young run does not count as its usual share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from typing import Any

from sqlalchemy import Row, func, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import INCARNATIONS, RUNS
from wattmesh.controller.journal.database.values import from_us, to_us
from wattmesh.controller.journal.runs.stays import OURS, RESTART, SUSPENDED
from wattmesh.reconfig.catalogue import Release

DAY_US = 86_400_000_000
MOST = 0.5
"""A run that stands still more often than not needs a person, not a better estimate."""

_LAUNCHES = (
    select(
        INCARNATIONS.c.run,
        INCARNATIONS.c.attempt,
        INCARNATIONS.c.started_at,
        INCARNATIONS.c.ended_at,
        INCARNATIONS.c.end_reason,
        INCARNATIONS.c.asleep_release,
        INCARNATIONS.c.waited_us,
        # Names of GPUs are equally long: as long a list is one of as many.
        func.length(INCARNATIONS.c.gpus).label("size"),
    )
    .where(INCARNATIONS.c.run.in_(select(RUNS.c.run).where(RUNS.c.finished_at.is_(None))))
    .order_by(INCARNATIONS.c.run, INCARNATIONS.c.started_at)
)


@dataclass(frozen=True, slots=True)
class Launches:
    """The launches of one run, oldest first."""

    rows: tuple[Row[Any], ...] = ()

    @property
    def unordered(self) -> int:
        """The attempt of the newest launch that we did not order; 0: there was none."""
        after = (
            each.attempt for before, each in pairwise(self.rows) if before.end_reason not in OURS
        )
        return max(after, default=0)

    @property
    def woken(self) -> tuple[datetime, int] | None:
        """When the newest launch registered and the attempt that slept before; None: none did."""
        if len(self.rows) < 2 or self.rows[-2].end_reason != SUSPENDED:
            return None
        return from_us(self.rows[-1].started_at), self.rows[-2].attempt

    @property
    def waits_s(self) -> list[float]:
        """How long each launch of another size waited for its nodes, and began; oldest first.

        Those that came back in the old size are left out: they waited as long as we told them to.
        So are those that do not say since when they ask: the daemon may have been away.
        """
        return [
            after.waited_us / 1e6
            for before, after in pairwise(self.rows)
            if before.end_reason == RESTART
            and before.asleep_release == Release.RELEASED
            and after.waited_us is not None
            and before.size != after.size
        ]

    def outage_share(self, now: datetime) -> float:
        """Give the share of its time that the run stood still between launches, in [0, 0.5]."""
        stood_us: int = sum(
            max(0, after.started_at - before.ended_at)
            for before, after in pairwise(self.rows)
            if before.ended_at is not None and before.end_reason not in OURS
        )
        if not stood_us:
            return 0.0
        known_us: int = max(DAY_US, to_us(now) - self.rows[0].started_at)
        return min(MOST, stood_us / known_us)


class OutageStore:
    """Reads the table of incarnations."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def launches(self) -> Mapping[str, Launches]:
        """Give the launches of every run that has not ended."""
        with self._database.reading() as connection:
            rows: list[Row[Any]] = list(connection.execute(_LAUNCHES))
        return {run: Launches(tuple(each)) for run, each in groupby(rows, key=lambda row: row.run)}
