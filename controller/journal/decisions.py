"""Decisions: what the cycle decided and why, one row per change of mind.

Invariant: consecutive decisions of one run with the same epoch, mode, action, kind, current point
and target are one row, with how long it held and the newest sentence; so a year of holding is a
handful of rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import DECISIONS, RUNS
from wattmesh.controller.journal.database.values import from_us, to_text, to_us
from wattmesh.controller.journal.leadership import check_epoch
from wattmesh.policies.decision import Decision, Mode

_MIND = ("action", "kind", "current", "target")
"""What makes a decision another one than before, with epoch and mode."""

_NUMBERS = ("predicted_g", "switch_cost_g", "price_mu", "plan_bound_g", "slack_s")

_LAST = (
    select(func.max(DECISIONS.c.id))
    .where(DECISIONS.c.run == RUNS.c.run)
    .correlate(RUNS)
    .scalar_subquery()
)

_NEWEST = select(DECISIONS).where(
    DECISIONS.c.id.in_(select(_LAST).where(RUNS.c.run.in_(bindparam("runs", expanding=True))))
)
"""The newest decision of each of some runs, by one look into the index for each."""

_HELD = (
    update(DECISIONS)
    .where(DECISIONS.c.id == bindparam("which"))
    .values(
        count=DECISIONS.c["count"] + 1,
        **{name: bindparam(name) for name in ("last_at", "reason", "numbers", "forecast")},
    )
)


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
        decisions: Sequence[Decision],
        *,
        now: datetime,
        epoch: int,
        mode: Mode,
        forecast: int | None = None,
    ) -> None:
        """Record decisions, at most one of each run, all or none of them.

        Args:
            decisions: what was decided.
            now: when.
            epoch: of the leader.
            mode: in which it was decided.
            forecast: id of the forecast issue that they rested on.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        if not decisions:
            return
        at_us = to_us(now)
        told = {
            each.run: {"epoch": epoch, "mode": str(mode), **{k: getattr(each, k) for k in _MIND}}
            for each in decisions
        }
        newest = {
            each.run: {
                "last_at": at_us,
                "reason": each.reason,
                "numbers": to_text({name: getattr(each, name) for name in _NUMBERS}),
                "forecast": forecast,
            }
            for each in decisions
        }
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            held = {
                row.run: row.id
                for row in connection.execute(_NEWEST, {"runs": list(told)})
                if all(getattr(row, key) == value for key, value in told[row.run].items())
            }
            again = [{"which": held[run], **newest[run]} for run in told if run in held]
            first = {"first_at": at_us, "count": 1}
            new = [{"run": run, **first, **told[run], **newest[run]} for run in told.keys() - held]
            if again:
                connection.execute(_HELD, again)
            if new:
                connection.execute(insert(DECISIONS), sorted(new, key=lambda row: row["run"]))

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
