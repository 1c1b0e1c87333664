"""Decisions: what the cycle decided and why, one row per change of mind.

Invariant: consecutive decisions of one run with the same epoch, mode, action, kind, current point
and target are one row, with how long it held and the newest sentence; so a year of holding is a
handful of rows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import DECISIONS
from wattmesh.controller.journal.database.values import from_us, to_text, to_us
from wattmesh.policies.decision import Decision, Mode

_NUMBERS = ("predicted_g", "switch_cost_g", "price_mu", "plan_bound_g", "slack_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """One decision and how long it held.

    Attributes:
        numbers: the figures it was based on. `forecast`: id of the issue it rested on; None: none.
    """

    run: str
    first_at: datetime
    last_at: datetime
    count: int
    epoch: int
    mode: str
    action: str
    kind: str
    current: str
    target: str
    reason: str
    numbers: Mapping[str, float | None]
    forecast: int | None = None


class DecisionStore:
    """The decisions table."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def record(
        self,
        decision: Decision,
        *,
        now: datetime,
        epoch: int,
        mode: Mode,
        forecast: int | None = None,
    ) -> None:
        """Record a decision, and the id of the forecast issue that it rested on."""
        same = {
            "epoch": epoch,
            "mode": str(mode),
            "action": str(decision.action),
            "kind": decision.kind,
            "current": decision.current,
            "target": decision.target,
        }
        newest = {
            "last_at": to_us(now),
            "reason": decision.reason,
            "numbers": to_text({name: getattr(decision, name) for name in _NUMBERS}),
            "forecast": forecast,
        }
        query = (
            select(DECISIONS)
            .where(DECISIONS.c.run == decision.run)
            .order_by(DECISIONS.c.id.desc())
            .limit(1)
        )
        with self._database.writing() as connection:
            row = connection.execute(query).one_or_none()
            if row is not None and all(getattr(row, key) == same[key] for key in same):
                connection.execute(
                    update(DECISIONS)
                    .where(DECISIONS.c.id == row.id)
                    .values(count=DECISIONS.c["count"] + 1, **newest)
                )
            else:
                first = {"run": decision.run, "first_at": to_us(now), "count": 1}
                connection.execute(insert(DECISIONS).values(**first, **same, **newest))

    def list(
        self, run: str | None = None, limit: int = 100, since: datetime | None = None
    ) -> tuple[DecisionRow, ...]:
        """List decisions, newest first."""
        query = select(DECISIONS).order_by(DECISIONS.c.id.desc()).limit(limit)
        if run is not None:
            query = query.where(DECISIONS.c.run == run)
        if since is not None:
            query = query.where(DECISIONS.c.last_at >= to_us(since))
        with self._database.reading() as connection:
            return tuple(_row(row._mapping) for row in connection.execute(query))


def _row(row: Mapping[Any, Any]) -> DecisionRow:
    values = {each: row[each] for each in DecisionRow.__dataclass_fields__}
    values["first_at"] = from_us(values["first_at"])
    values["last_at"] = from_us(values["last_at"])
    values["numbers"] = json.loads(values["numbers"])
    return DecisionRow(**values)
