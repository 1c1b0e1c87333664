"""Plans of budgets, and closed months: both append-only.

Invariant: a plan is never changed; a further one of the same period stands beside it and is the one
that counts. A month is closed once; what it came to then is never overwritten.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any

from sqlalchemy import Row, insert, select

from wattmesh.controller.journal.engine import Database
from wattmesh.controller.journal.tables import BUDGET_PLANS, CLOSED_PERIODS
from wattmesh.controller.journal.values import from_us, insert_new, to_text, to_us
from wattmesh.policies.budget import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """The plan of one budget for one period.

    Attributes:
        name: of the budget: `cluster`, or a run's. `period`: `2026-11`.
        why: one sentence: what it rests on, and for whom it was made anew.
        signal: the grams it is in; "" where no signal was set.
    """

    name: str
    period: str
    made_at: datetime
    curve: Curve
    why: str
    signal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedRow:
    """A closed month. `figures`: its whole report as it was then, as JSON values."""

    period: str
    timezone: str
    start: datetime
    end: datetime
    closed_at: datetime
    figures: Mapping[str, Any]


class BudgetStore:
    """Both tables."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def add(self, plan: PlanRow) -> None:
        """Keep a plan."""
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
        """Close a month; False when it has been already, and nothing was changed."""
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


def _plan(row: Row[Any]) -> PlanRow:
    """Read one plan."""
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
