"""Runs that began while the wall clock was in doubt: their first dates follow its next steps.

Otherwise a run whose deadline is counted from its launch would have a year too much, or too little,
once a wrong clock is corrected. Invariant: a step moves each date once. A restart of the daemon
forgets these runs, and their dates then stay as they are.
"""

import threading
from dataclasses import dataclass

from sqlalchemy import Column, Connection, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import INCARNATIONS, RUNS, STAYS, TOKEN_MARKS

_DATES = (
    *(RUNS.c.registered_at, INCARNATIONS.c.started_at, INCARNATIONS.c.last_seen_at),
    *(STAYS.c.at, TOKEN_MARKS.c.at),
)
"""The dates of a run's beginning by the wall clock. Bookings by slot wait until time is trusted."""


@dataclass(slots=True)
class _Doubtful:
    """One run. `counted`: its deadline counts from its launch. `owed_us`: steps not yet written."""

    counted: bool
    owed_us: int = 0


class DoubtfulRuns:
    """The runs that began in doubt, until the time is trusted again; for any thread."""

    def __init__(self, database: Database) -> None:
        """Begin with no run."""
        self._database = database
        self._runs: dict[str, _Doubtful] = {}
        self._lock = threading.Lock()

    def add(self, run: str, *, counted: bool) -> None:
        """Add a new run."""
        with self._lock:
            self._runs[run] = _Doubtful(counted=counted)

    def follow(self, step_s: float) -> None:
        """Add a step of the clock to what is owed to each run."""
        with self._lock:
            for each in self._runs.values():
                each.owed_us += round(step_s * 1e6)

    def settle(self, *, trusted: bool) -> None:
        """Write the steps that are owed; forget all runs once the time is `trusted`.

        Raises:
            JournalUnavailable: nothing was written; the next call does it.
        """
        with self._lock:
            if any(each.owed_us for each in self._runs.values()):
                with self._database.writing() as connection:
                    for run, each in self._runs.items():
                        _shift(connection, run, each)
                for each in self._runs.values():
                    each.owed_us = 0
            if trusted:
                self._runs.clear()


def _shift(connection: Connection, run: str, doubtful: _Doubtful) -> None:
    dates: tuple[Column[int], ...] = (*_DATES, RUNS.c.deadline) if doubtful.counted else _DATES
    for date in dates:
        moved = {date.name: date + doubtful.owed_us}
        connection.execute(update(date.table).where(date.table.c.run == run).values(moved))
