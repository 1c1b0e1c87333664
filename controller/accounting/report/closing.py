"""Closing a month: once every slot of it is settled, its figures are stored for good.

Invariant: a closed month has no provisional row, and something was measured after its end, so that
a wrong clock alone cannot close it; its figures are written once and never changed. What is revised
or booked later shows as restated against them. A month that was closed wrongly is reopened by an
operator, and the figures it was closed with are kept.
"""

from datetime import UTC, datetime

from wattmesh.controller.accounting.accounts import ACTUAL
from wattmesh.controller.accounting.budgets.periods import Period, period_before, period_of
from wattmesh.controller.accounting.report.month import ReportSettings, report
from wattmesh.controller.accounting.report.views import MonthReport
from wattmesh.controller.journal.energy.budgets import ClosedRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.marks import marked
from wattmesh.controller.signals.slot_prices import SETTLED, SETTLED_AFTER
from wattmesh.controller.views import as_json
from wattmesh.quantities import grams, joules

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
MOST_MONTHS = 36
"""How many months back it looks for open months; older ones have no slots any more."""


def waits_for(journal: Journal, month: Period, now: datetime) -> str:
    """Say what a month waits for before it can be closed; "" when it can be.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    settles = month.end + SETTLED_AFTER
    if now < settles:
        return f"it can be closed from {settles:%Y-%m-%d %H:%M} UTC on, 48 h after its end"
    measured = journal.by_slot.newest_measured(SETTLED)
    if measured is None or measured < month.end:
        newest = (
            f"the newest measured one ended at {measured:%Y-%m-%d %H:%M} UTC"
            if measured
            else "the grid signal has given no measured value"
        )
        return f"no slot after its end is measured yet: {newest}"
    provisional = journal.by_slot.provisional(month.start, month.end)
    if provisional:
        return f"{provisional} of its rows are provisional: the grid is not measured in them yet"
    unbooked = [
        each
        for each in journal.ledger.unemitted(month.start, ACTUAL)
        if each.slot_start < month.end
    ]
    return f"{len(unbooked)} of its rows have not been priced yet" if unbooked else ""


def close(journal: Journal, site: ReportSettings, now: datetime) -> tuple[str, ...]:
    """Close every month that can be closed; give a sentence for each. No signal: close nothing.

    Raises:
        JournalUnavailable: the months closed so far stay closed; the next call goes on.
    """
    if not site.signal:
        return ()
    said = []
    for month in _open(journal, site.timezone, now):
        if waits_for(journal, month, now):
            continue
        made = report(journal, month, site, now)
        row = ClosedRow(
            period=month.name,
            timezone=site.timezone,
            start=month.start,
            end=month.end,
            closed_at=now,
            figures=as_json(made),
        )
        if journal.budgets.close(row):
            said.append(_closed_sentence(made))
    return tuple(said)


def _closed_sentence(made: MonthReport) -> str:
    energy = marked(joules(made.energy_mj / 1e3), made.flags)
    carbon = " and ".join(
        marked(grams(each.carbon_ug / 1e6), each.flags) + f" in {each.signal}"
        for each in made.carbon
    )
    unpriced = marked(joules(made.unpriced_mj / 1e3), made.flags)
    tail = f", {unpriced} without grams" if made.unpriced_mj else ""
    return f"Closed {made.month} ({made.timezone}): {carbon or 'no grams'} for {energy}{tail}."


def _open(journal: Journal, timezone: str, now: datetime) -> list[Period]:
    """List ended months that are not closed, oldest first, from that of the first slot on."""
    first = journal.ledger.first_slot(BEGINNING)
    found: list[Period] = []
    at = period_of(now, "month", timezone).start
    for _ in range(MOST_MONTHS):
        month = period_before(at, "month", timezone)
        if first is None or month.end <= first:
            break
        if journal.budgets.closed(month.name, timezone) is None:
            found.append(month)
        at = month.start
    return found[::-1]
