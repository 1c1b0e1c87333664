"""Where each budget of the settings stands in its running period: spent, on course, restated.

A slot belongs to the period in which it begins. Invariant: grams that are not known are not in
`spent_g`; their joules stand beside it. A budget alerts, it never stops a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from wattmesh.controller.accounts import ACTUAL, UNPRICED
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.ledger import TotalRow
from wattmesh.controller.periods import Period, period_of

UG = 1_000_000
CLUSTER = "cluster"
"""The budget of everything; any other name is a run's."""

WINDOW = timedelta(days=7)
"""The rate of so many days, at most, is carried on to the end of the period."""

LEAST_WINDOW = timedelta(hours=1)
"""Before so much was booked there is no rate to carry on."""


class Limit(Protocol):
    """What the settings say of a budget."""

    @property
    def grams(self) -> float:
        """Grams that may be spent in one period."""
        ...

    @property
    def period(self) -> str:
        """Day, week, month or year."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodLine:
    """One budget in its running period.

    Attributes:
        name: of the budget: `cluster`, or a run's. `period`: `2026-11`, from `start` to `end`.
        spent_g: grams of its priced slots. `unpriced_j`: joules that have no grams (yet).
        expected_g: what an even spending of the limit would have come to by now.
        burn: spent over expected; above 1 the limit will not last.
        on_course_g: at the end, if it goes on at the rate of the newest days; None too early.
        restated_g: how much revised intensities changed of what was first reported.
        alert: one sentence with what to do; "" while the limit lasts.
    """

    name: str
    period: str
    start: datetime
    end: datetime
    limit_g: float
    spent_g: float
    unpriced_j: float
    expected_g: float
    burn: float
    on_course_g: float | None
    restated_g: float
    alert: str


def spending(
    journal: Journal, limits: Mapping[str, Limit], timezone: str, now: datetime
) -> tuple[PeriodLine, ...]:
    """Say where every budget stands.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    return tuple(
        _line(journal, name, limit, period_of(now, limit.period, timezone), now)
        for name, limit in sorted(limits.items())
    )


def _line(journal: Journal, name: str, limit: Limit, period: Period, now: datetime) -> PeriodLine:
    """Add one budget up."""
    run = _run_id(journal, name, now)
    spent = _actual(journal, period.start, period.end, run)
    spent_ug = sum(row.carbon_ug for row in spent)
    passed = max((now - period.start) / (period.end - period.start), 1e-9)
    course_g = _on_course_g(journal, run, spent_ug / UG, period, now)
    return PeriodLine(
        name=name,
        period=period.name,
        start=period.start,
        end=period.end,
        limit_g=limit.grams,
        spent_g=spent_ug / UG,
        unpriced_j=sum(row.energy_mj for row in spent if row.quality == UNPRICED) / 1000,
        expected_g=limit.grams * passed,
        burn=spent_ug / UG / (limit.grams * passed),
        on_course_g=course_g,
        restated_g=sum(row.carbon_ug - row.first_carbon_ug for row in spent) / UG,
        alert=_alert(name, limit.grams, spent_ug / UG, course_g, period),
    )


def _run_id(journal: Journal, name: str, now: datetime) -> str | None:
    """Give the run a budget is of; None for the cluster, an id nobody has when it never ran."""
    if name == CLUSTER:
        return None
    row = journal.runs.find(name, now)
    return row.run if row else name


def _actual(
    journal: Journal, start: datetime, end: datetime, run: str | None
) -> tuple[TotalRow, ...]:
    """Sum the grams of slots that begin in [start, end)."""
    found = journal.ledger.between(start, end, run)
    return tuple(row for row in found if row.scenario == ACTUAL)


def _on_course_g(
    journal: Journal, run: str | None, spent_g: float, period: Period, now: datetime
) -> float | None:
    """Carry the rate of the newest days on to the end of the period."""
    window = min(WINDOW, period.end - period.start)
    first = journal.ledger.first_slot(now - window, run)
    if first is None or now - first < LEAST_WINDOW:
        return None
    recent_ug = sum(row.carbon_ug for row in _actual(journal, first, now, run))
    return spent_g + recent_ug / UG * ((period.end - now) / (now - first))


def _alert(
    name: str, limit_g: float, spent_g: float, on_course_g: float | None, period: Period
) -> str:
    """Say that the limit is exhausted, or will be; "" while it lasts."""
    if spent_g > limit_g:
        return (
            f"budget {name}: {spent_g:.1f} g of {limit_g:.1f} g are spent before the end of "
            f"{period.name}; a budget stops no run: postpone one, or raise budget.{name}.grams"
        )
    if on_course_g is not None and on_course_g > limit_g:
        return (
            f"budget {name}: on course for {on_course_g:.1f} g of {limit_g:.1f} g by the end of "
            f"{period.name}; move a deadline, or raise budget.{name}.grams"
        )
    return ""
