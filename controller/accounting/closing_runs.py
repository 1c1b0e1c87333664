"""Closing runs: a run's final figures are stored for good, so that its slots may be summed up.

Invariant: a run is closed once, when it has finished and all its slots are old; its figures are
then computed from its slots, and never change.
"""

from datetime import datetime

from wattmesh.controller.accounting.saving import run_saving
from wattmesh.controller.journal.journal import Journal


def close_runs(journal: Journal, before: datetime, now: datetime) -> tuple[str, ...]:
    """Close every run that finished before a moment and has no later slots; give their ids.

    Raises:
        JournalUnavailable: the runs closed so far stay closed; the next call goes on.
    """
    known = journal.ledger.closed_runs()
    closed = []
    for run in journal.runs.all(now):
        if run.run in known or run.finished_at is None or run.finished_at >= before:
            continue
        newest = journal.ledger.newest_slot(run.run)
        if newest is not None and newest >= before:
            continue
        journal.ledger.close_run(run.run, run_saving(journal, run, {}).to_json(), now)
        closed.append(run.run)
    return tuple(closed)
