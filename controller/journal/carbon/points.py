"""What was observed of the grid: append-only, with who said so and when, and how its polls went.

Invariant: nothing is overwritten; a revised value is a further row. A reader chooses the best row
of an interval: measured before provisional, and of equal rank the newest. Forecasts are kept apart,
as they were issued (forecasts.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, select

from wattmesh.controller.journal.carbon.forecasts import ForecastStore, issues
from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import CARBON_FETCHES, CARBON_POINTS
from wattmesh.controller.journal.database.values import from_us, to_us, upsert
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality

_OBSERVED = (
    select(CARBON_POINTS)
    .where(CARBON_POINTS.c.signal == bindparam("of"))
    .where(CARBON_POINTS.c.start_at.between(bindparam("first"), bindparam("last")))
    .order_by(CARBON_POINTS.c.start_at, CARBON_POINTS.c.id)
)

_FETCHED = select(CARBON_FETCHES).where(CARBON_FETCHES.c.signal == bindparam("of"))
_CHANGES = select(
    CARBON_POINTS.c.id, CARBON_POINTS.c.signal, CARBON_POINTS.c.start_at, CARBON_POINTS.c.end_at
).where(CARBON_POINTS.c.id > bindparam("since"))

_RANK = {Quality.MEASURED: 4, Quality.ESTIMATED: 3, Quality.STATIC: 2, Quality.PROVISIONAL: 1}


class FetchState(StrEnum):
    """How the newest poll of a signal ended."""

    OK = "ok"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRow:
    """How the polls of one signal went.

    Attributes:
        detail: the newest failure; "" when the last poll was ok. `state`: how the newest poll
            ended; "" when that is not known.
        deep_at: when the trailing days were last asked for. `filled_from`: the start of the past
            that has been asked for.
        rung: what decisions last rested on; "" before the first. `rung_at`: since when; None while
            that is the first.
    """

    ok_at: datetime | None
    failed_at: datetime | None
    detail: str
    state: str = ""
    deep_at: datetime | None = None
    filled_from: datetime | None = None
    rung: str = ""
    rung_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An interval for which a row was stored."""

    id: int
    signal: str
    start: datetime
    end: datetime


class CarbonStore:
    """The carbon tables."""

    def __init__(self, database: Database, forecasts: ForecastStore) -> None:
        """Keep the database, and the store that forecasts go to."""
        self._database = database
        self._forecasts = forecasts
        self._read: dict[str, dict[tuple[Any, ...], CarbonPoint]] = {}

    def store(self, points: Iterable[CarbonPoint]) -> int:
        """Append new points: their interval and quality has no row yet, or its newest row differs.

        Forecasts among the points are kept as the issues they came in.

        Returns:
            The number of new rows and issues.
        """
        told = list(points)
        new = [point for point in told if point.quality is not Quality.FORECAST]
        ahead = [point for point in told if point.quality is Quality.FORECAST]
        return self._append(new) + sum(map(self._forecasts.store, issues(ahead)))

    def _append(self, new: list[CarbonPoint]) -> int:
        """Append observed points that are new; return how many."""
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
        wanted = {"of": str(signal), "first": to_us(start), "last": to_us(end)}
        best: dict[int, Row[Any]] = {}
        with self._database.reading() as connection:
            for row in connection.execute(_OBSERVED, wanted):
                held = best.get(row.start_at)
                if held is None or _rank(row) >= _rank(held):
                    best[row.start_at] = row
        # Most rows were in the previous read too, and a lookup costs less than making a point.
        known = self._read.get(str(signal), {})
        rows = ((tuple(row), row) for row in best.values())
        points = {key: known.get(key) or _point(row, signal) for key, row in rows}
        self._read[str(signal)] = points
        return tuple(points.values())

    def stored_since(self, signal: Signal, since_id: int) -> tuple[tuple[CarbonPoint, ...], int]:
        """Give a signal's rows after the row `since_id` in the order they came, and the last id."""
        table = CARBON_POINTS.c
        query = select(CARBON_POINTS).where(table.id > since_id, table.signal == str(signal))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.id)).all()
        return tuple(_point(row, signal) for row in rows), rows[-1].id if rows else since_id

    def known_until(self, signal: Signal) -> datetime | None:
        """Return the end of the newest observed interval; None when nothing was observed."""
        table = CARBON_POINTS.c
        newest = select(table.end_at).where(table.signal == str(signal))
        with self._database.reading() as connection:
            query = newest.order_by(table.start_at.desc(), table.id.desc()).limit(1)
            return from_us(connection.execute(query).scalar())

    def newest_id(self) -> int:
        """Give the id of the newest row; 0 when there is none."""
        with self._database.reading() as connection:
            return connection.execute(select(func.max(CARBON_POINTS.c.id))).scalar() or 0

    def changes(self, since_id: int) -> tuple[Change, ...]:
        """List the rows stored after the row `since_id`."""
        with self._database.reading() as connection:
            rows = connection.execute(_CHANGES, {"since": since_id}).all()
        return tuple(
            Change(
                id=row.id, signal=row.signal, start=from_us(row.start_at), end=from_us(row.end_at)
            )
            for row in rows
        )

    def fetched(
        self,
        signal: Signal | str,
        at: datetime,
        ok: bool,
        detail: str = "",
        *,
        refused: bool = False,
    ) -> None:
        """Record how a poll of a signal, or of another series by its name, ended.

        `refused`: a person has to fix something.
        """
        failed = FetchState.REFUSED if refused else FetchState.FAILED
        self._note(
            signal,
            detail=detail,
            state=str(FetchState.OK if ok else failed),
            **{"ok_at" if ok else "failed_at": to_us(at)},
        )

    def filled(self, signal: Signal | str, *, deep_at: datetime, since: datetime) -> None:
        """Record how far back a signal's past has been asked for, and when it was asked for."""
        self._note(signal, deep_at=to_us(deep_at), filled_from=to_us(since))

    def stands_on(self, signal: Signal, rung: str, at: datetime | None) -> None:
        """Record the rung that decisions rest on and since when; `at` None: it is the first."""
        self._note(signal, rung=rung, rung_at=to_us(at))

    def _note(self, signal: Signal | str, **values: Any) -> None:
        """Write these columns of a signal's row; the others keep their values."""
        with self._database.writing() as connection:
            upsert(connection, CARBON_FETCHES, [{"signal": str(signal), **values}])

    def last_fetch(self, signal: Signal | str) -> FetchRow | None:
        """Say how the newest polls of a signal went; None before the first."""
        with self._database.reading() as connection:
            row = connection.execute(_FETCHED, {"of": str(signal)}).one_or_none()
        if row is None:
            return None
        values = dict(row._mapping)
        times = {
            name: from_us(values[name])
            for name in ("ok_at", "failed_at", "deep_at", "filled_from", "rung_at")
        }
        del values["signal"]
        return FetchRow(**(values | times))


def rank(quality: Quality) -> int:
    """Rank a quality: of two rows of one interval, the one of higher rank counts."""
    return _RANK.get(quality, 0)


def _rank(row: Row[Any]) -> int:
    return rank(Quality(row.quality))


def _key(row: Row[Any]) -> tuple[str, int, str]:
    return row.signal, row.start_at, row.quality


def _values(point: CarbonPoint) -> dict[str, Any]:
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
