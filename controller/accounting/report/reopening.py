"""Reopening a closed month: the figures it was closed with are kept, with who did it and why.

Invariant: a month is reopened under the leader's epoch, once; it is closed again by the same rule
as any other month.
"""

from datetime import datetime

from wattmesh.controller.accounting.report.closed import closed_carbon
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.views import Reopening


def reopenings(journal: Journal, start: datetime, end: datetime) -> tuple[Reopening, ...]:
    """List the reopenings of months that overlap [start, end), in the order they were made.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    return tuple(
        Reopening(
            month=row.period,
            closed_at=row.closed_at,
            reopened_at=row.reopened_at,
            by=row.by,
            reason=row.reason,
            carbon_ug=closed_carbon(row.figures),
            flags=tuple(row.figures.get("flags", ())),
        )
        for row in journal.budgets.reopened(start, end)
    )
