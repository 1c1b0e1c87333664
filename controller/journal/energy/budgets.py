"""Plans of budgets, and closed months: both append-only.

Invariant: a plan is never changed; of several plans of one period the newest counts. A month is
closed once, and its figures are never overwritten: when it is reopened, they move to a table of
their own, with who reopened it and why.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any

from sqlalchemy import Row, delete, insert, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import (
    BUDGET_PLANS,
    CLOSED_PERIODS,
    REOPENED_PERIODS,
)
from wattmesh.controller.journal.database.values import from_us, insert_new, to_text, to_us
from wattmesh.controller.journal.leadership import check_epoch
from wattmesh.policies.accounting.budget import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """The plan of one budget for one period.

    Attributes:
        name: of the budget: `cluster`, or a run's. `period`: `2026-11`.
        why: one sentence: what it rests on, and why or for whom it was made again.
        signal: the signal that its grams are in; "" where none was set.
    """

    name: str
    period: str
    made_at: datetime
    curve: Curve
    why: str
    signal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedRow:
    """A closed month. `figures`: its whole report at that time, as JSON values."""

    period: str
    timezone: str
    start: datetime
    end: datetime
    closed_at: datetime
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReopenedRow:
    """A month that was closed, and reopened by `by`. `figures`: those it had been closed with."""

    period: str
    timezone: str
    closed_at: datetime
    figures: Mapping[str, Any]
    reopened_at: datetime
    by: str
    reason: str


class BudgetStore:
    """The tables of plans and of closed and reopened months."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def add(self, plan: PlanRow) -> None:
        """Store a plan."""
        curve = plan.curve
        row = {
            "name": plan.name,
            "period": plan.period,
            "start_at": to_us(curve.start),
            "end_at": to_us(curve.end),
            "made_at": to_us(plan.made_at),
            "limit_ug": curve.limit_ug,
            "hours_ug": to_text([after - before for before, after in pairwise(curve.sums_ug)]),
            "why": plan.why,
            "signal": plan.signal,
        }
        with self._database.writing() as connection:
            connection.execute(insert(BUDGET_PLANS).values(**row))

    def plans(self, name: str, since: datetime) -> tuple[PlanRow, ...]:
        """List every plan of a budget whose period ends after `since`, in the order made."""
        table = BUDGET_PLANS.c
        query = (
            select(BUDGET_PLANS)
            .where(table.name == name)
            .where(table.end_at > to_us(since))
            .order_by(table.start_at, table.id)
        )
        with self._database.reading() as connection:
            return tuple(map(_plan, connection.execute(query)))

    def close(self, row: ClosedRow) -> bool:
        """Close a month; False when it was closed before, and nothing was changed."""
        values = {
            "period": row.period,
            "timezone": row.timezone,
            "start_at": to_us(row.start),
            "end_at": to_us(row.end),
            "closed_at": to_us(row.closed_at),
            "figures": to_text(row.figures),
        }
        with self._database.writing() as connection:
            return insert_new(connection, CLOSED_PERIODS, values)

    def closed(self, period: str, timezone: str) -> ClosedRow | None:
        """Give a closed month; None while it is open."""
        table = CLOSED_PERIODS.c
        query = (
            select(CLOSED_PERIODS).where(table.period == period).where(table.timezone == timezone)
        )
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return ClosedRow(
            period=row.period,
            timezone=row.timezone,
            start=from_us(row.start_at),
            end=from_us(row.end_at),
            closed_at=from_us(row.closed_at),
            figures=json.loads(row.figures),
        )

    def closed_after(self, moment: datetime) -> tuple[str, ...]:
        """Name the closed months that end after a moment, oldest first."""
        table = CLOSED_PERIODS.c
        query = select(table.period).where(table.end_at > to_us(moment)).order_by(table.start_at)
        with self._database.reading() as connection:
            return tuple(connection.execute(query).scalars())

    def reopen(
        self, period: str, timezone: str, *, by: str, reason: str, now: datetime, epoch: int
    ) -> bool:
        """Reopen a closed month and keep the figures it was closed with; False when it is open.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        table = CLOSED_PERIODS.c
        which = (table.period == period) & (table.timezone == timezone)
        trace = {"reopened_at": to_us(now), "by": by, "reason": reason}
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            row = connection.execute(select(CLOSED_PERIODS).where(which)).mappings().one_or_none()
            if row is None:
                return False
            connection.execute(insert(REOPENED_PERIODS).values(**row, **trace))
            connection.execute(delete(CLOSED_PERIODS).where(which))
        return True

    def reopened(self, start: datetime, end: datetime) -> tuple[ReopenedRow, ...]:
        """List the reopenings of months that overlap [start, end), in the order they were made."""
        table = REOPENED_PERIODS.c
        query = (
            select(REOPENED_PERIODS)
            .where(table.start_at < to_us(end), table.end_at > to_us(start))
            .order_by(table.id)
        )
        with self._database.reading() as connection:
            return tuple(
                ReopenedRow(
                    period=row.period,
                    timezone=row.timezone,
                    closed_at=from_us(row.closed_at),
                    figures=json.loads(row.figures),
                    reopened_at=from_us(row.reopened_at),
                    by=row.by,
                    reason=row.reason,
                )
                for row in connection.execute(query)
            )


def _plan(row: Row[Any]) -> PlanRow:
    curve = Curve(
        start=from_us(row.start_at),
        end=from_us(row.end_at),
        sums_ug=(0, *accumulate(json.loads(row.hours_ug))),
    )
    return PlanRow(
        name=row.name,
        period=row.period,
        made_at=from_us(row.made_at),
        curve=curve,
        why=row.why,
        signal=row.signal,
    )
