"""Runs that began while the wall clock was in doubt: their first dates follow its next steps.

Else a run whose deadline is counted from its launch would have a year too much, or too little, once
a wrong clock is put right. Invariant: a step moves each date once; after a restart, which remembers
none of these runs, they stand as they were told.
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
"""When it began, as its clock told; whatever is booked by slots waits until time is trusted."""


@dataclass(slots=True)
class _Doubtful:
    """One run. `counted`: its deadline is counted from its launch. `owed_us`: not written yet."""

    counted: bool
    owed_us: int = 0


class DoubtfulRuns:
    """Remembers them until the time is trusted again; for any thread."""

    def __init__(self, database: Database) -> None:
        """Begin with none."""
        self._database = database
        self._runs: dict[str, _Doubtful] = {}
        self._lock = threading.Lock()

    def add(self, run: str, *, counted: bool) -> None:
        """Take in a run that is new."""
        with self._lock:
            self._runs[run] = _Doubtful(counted=counted)

    def follow(self, step_s: float) -> None:
        """Note that the clock was stepped."""
        with self._lock:
            for each in self._runs.values():
                each.owed_us += round(step_s * 1e6)

    def settle(self, *, trusted: bool) -> None:
        """Write what is owed; forget all of them once the time is `trusted`.

        Raises:
            JournalUnavailable: the next call does it.
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
    """Move the dates of one run."""
    dates: tuple[Column[int], ...] = (*_DATES, RUNS.c.deadline) if doubtful.counted else _DATES
    for date in dates:
        moved = {date.name: date + doubtful.owed_us}
        connection.execute(update(date.table).where(date.table.c.run == run).values(moved))
