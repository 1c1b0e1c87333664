"""Carbon points: append-only, with who said so and when.

Invariant: nothing is overwritten; a revised value is a further row, and the best row of an interval
is chosen when it is read: measured before provisional, and of those the newest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, insert, select

from wattmesh.controller.journal.engine import Database
from wattmesh.controller.journal.tables import CARBON_FETCHES, CARBON_POINTS
from wattmesh.controller.journal.values import from_us, to_us, upsert
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality

_POINTS = (
    select(CARBON_POINTS)
    .where(CARBON_POINTS.c.signal == bindparam("of"))
    .where(CARBON_POINTS.c.start_at.between(bindparam("first"), bindparam("last")))
    .order_by(CARBON_POINTS.c.start_at, CARBON_POINTS.c.id)
)
_FORECAST = _POINTS.where(CARBON_POINTS.c.quality == str(Quality.FORECAST))
_OBSERVED = _POINTS.where(CARBON_POINTS.c.quality != str(Quality.FORECAST))

_RANK = {Quality.MEASURED: 3, Quality.ESTIMATED: 2, Quality.PROVISIONAL: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRow:
    """How the polls of one signal went. `detail`: the newest failure; "" when the last was ok."""

    ok_at: datetime | None
    failed_at: datetime | None
    detail: str


class CarbonStore:
    """The carbon tables."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self._read: dict[tuple[str, bool], dict[tuple[Any, ...], CarbonPoint]] = {}

    def store(self, points: Iterable[CarbonPoint]) -> int:
        """Append what is new: an interval whose newest row says otherwise, or has none yet."""
        new = list(points)
        if not new:
            return 0
        signals = {str(point.signal) for point in new}
        first, last = min(p.start for p in new), max(p.start for p in new)
        table = CARBON_POINTS.c
        query = (
            select(CARBON_POINTS)
            .where(table.signal.in_(signals))
            .where(table.start_at.between(to_us(first), to_us(last)))
            .order_by(table.id)
        )
        with self._database.writing() as connection:
            known = {_key(row): row.g_milli_per_kwh for row in connection.execute(query)}
            rows = []
            for row in map(_values, new):
                key = (row["signal"], row["start_at"], row["quality"])
                if known.get(key) != row["g_milli_per_kwh"]:
                    known[key] = row["g_milli_per_kwh"]
                    rows.append(row)
            if rows:
                connection.execute(insert(CARBON_POINTS), rows)
        return len(rows)

    def observed(self, signal: Signal, start: datetime, end: datetime) -> tuple[CarbonPoint, ...]:
        """Give the best observed point of every interval that begins in [start, end]."""
        return self._best(signal, start, end, forecast=False)

    def forecast(self, signal: Signal, start: datetime, end: datetime) -> tuple[CarbonPoint, ...]:
        """Give the newest forecast of every interval that begins in [start, end]."""
        return self._best(signal, start, end, forecast=True)

    def fetched(self, signal: Signal, at: datetime, ok: bool, detail: str = "") -> None:
        """Remember how a poll went."""
        row: dict[str, Any] = {"signal": str(signal), "detail": detail}
        row["ok_at" if ok else "failed_at"] = to_us(at)
        with self._database.writing() as connection:
            upsert(connection, CARBON_FETCHES, [row])

    def last_fetch(self, signal: Signal) -> FetchRow | None:
        """Say how the newest polls of a signal went; None before the first."""
        query = select(CARBON_FETCHES).where(CARBON_FETCHES.c.signal == str(signal))
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return FetchRow(
            ok_at=from_us(row.ok_at), failed_at=from_us(row.failed_at), detail=row.detail
        )

    def _best(
        self, signal: Signal, start: datetime, end: datetime, *, forecast: bool
    ) -> tuple[CarbonPoint, ...]:
        """Choose one row per interval."""
        query = _FORECAST if forecast else _OBSERVED
        wanted = {"of": str(signal), "first": to_us(start), "last": to_us(end)}
        best: dict[int, Row[Any]] = {}
        with self._database.reading() as connection:
            for row in connection.execute(query, wanted):
                held = best.get(row.start_at)
                if held is None or _rank(row) >= _rank(held):
                    best[row.start_at] = row
        # Most rows are those of the cycle before, and a point is dearer to make than to find.
        known = self._read.get((str(signal), forecast), {})
        rows = ((tuple(row), row) for row in best.values())
        points = {key: known.get(key) or _point(row, signal) for key, row in rows}
        self._read[str(signal), forecast] = points
        return tuple(points.values())


def _rank(row: Row[Any]) -> int:
    return _RANK.get(Quality(row.quality), 0)


def _key(row: Row[Any]) -> tuple[str, int, str]:
    return row.signal, row.start_at, row.quality


def _values(point: CarbonPoint) -> dict[str, Any]:
    """Give the row of one point."""
    return {
        "signal": str(point.signal),
        "start_at": to_us(point.start),
        "end_at": to_us(point.end),
        "g_milli_per_kwh": round(point.g_per_kwh * 1000),
        "quality": str(point.quality),
        "issued_at": to_us(point.issued_at),
        "fetched_at": to_us(point.fetched_at),
        "model": point.model,
    }


def _point(row: Row[Any], signal: Signal) -> CarbonPoint:
    """Read one row."""
    return CarbonPoint(
        signal=signal,
        start=from_us(row.start_at),
        end=from_us(row.end_at),
        g_per_kwh=row.g_milli_per_kwh / 1000,
        quality=Quality(row.quality),
        issued_at=from_us(row.issued_at),
        fetched_at=from_us(row.fetched_at),
        model=row.model,
    )
