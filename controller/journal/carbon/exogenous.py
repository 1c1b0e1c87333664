"""Forecasts of wind, sun, load and weather: append-only, each with the moment it was known from.

Invariant: nothing is overwritten. A restated value is a further row, known from when it was fetched
and not from when the first was issued; so what could be known at a past moment can always be read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, delete, func, insert, select

from wattmesh.controller.journal.carbon.points import CarbonStore, FetchRow
from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import EXOGENOUS_POINTS
from wattmesh.controller.journal.database.values import from_us, to_us
from wattmesh.telemetry.exogenous import ExogenousKind, ExogenousPoint

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MILLI = 1000.0
EXOGENOUS = "exogenous:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExogenousValue:
    """What was forecast of one hour, in the unit of its kind, from when it was known."""

    series: str
    kind: ExogenousKind
    start: datetime
    value: float
    known_at: datetime


class ExogenousStore:
    """The table of exogenous forecasts, and how their polls went."""

    def __init__(self, database: Database, carbon: CarbonStore) -> None:
        """Keep the database, and the store that remembers polls."""
        self._database, self._carbon = database, carbon

    def store(
        self, series: str, points: Iterable[ExogenousPoint], *, not_before: datetime | None = None
    ) -> int:
        """Append whole hours that are new, or differ from the newest row of their hour; count them.

        Args:
            series: provider and zone, as `series_of` writes them.
            points: hours of that series.
            not_before: when the provider was asked last and told nothing of what is new now;
                whatever issue time it claims, nobody knew it then.
        """
        told = [each for each in points if each.end - each.start == HOUR]
        if not told:
            return 0
        first, last = min(each.start for each in told), max(each.start for each in told)
        table = EXOGENOUS_POINTS.c
        query = (
            select(EXOGENOUS_POINTS)
            .where(table.series == series)
            .where(table.start_at.between(to_us(first), to_us(last)))
            .order_by(table.id)
        )
        with self._database.writing() as connection:
            held = {
                (row.kind, row.start_at): (row.milli, row.known_at)
                for row in connection.execute(query)
            }
            rows = []
            for point in told:
                key, milli = (str(point.kind), to_us(point.start)), round(point.value * MILLI)
                before = held.get(key)
                if before is not None and (before[0] == milli or point.start <= point.fetched_at):
                    continue  # told already, or restated when nobody can use it any more
                issued_at = max(point.issued_at, not_before or point.issued_at)
                known_at = to_us(min(issued_at, point.fetched_at))
                if before is not None:  # restated: nobody knew it before it was fetched
                    known_at = max(before[1], to_us(point.fetched_at))
                held[key] = (milli, known_at)
                rows.append(
                    {
                        "series": series,
                        "kind": key[0],
                        "start_at": key[1],
                        "milli": milli,
                        "known_at": known_at,
                    }
                )
            if rows:
                connection.execute(insert(EXOGENOUS_POINTS), rows)
        return len(rows)

    def between(self, series: str, start: datetime, end: datetime) -> tuple[ExogenousValue, ...]:
        """Give every row of the hours that begin in [start, end), in the order they came."""
        table = EXOGENOUS_POINTS.c
        query = (
            select(EXOGENOUS_POINTS)
            .where(table.series == series)
            .where(table.start_at >= to_us(start), table.start_at < to_us(end))
            .order_by(table.id)
        )
        with self._database.reading() as connection:
            told = map(_value, connection.execute(query))
            return tuple(each for each in told if each is not None)

    def newest_id(self) -> int:
        """Give the id of the newest row; 0 when there is none."""
        with self._database.reading() as connection:
            return connection.execute(select(func.max(EXOGENOUS_POINTS.c.id))).scalar() or 0

    def reach(self, series: str) -> tuple[datetime | None, datetime | None]:
        """Give the end of the last hour that is told, and from when it is known; Nones if none."""
        table = EXOGENOUS_POINTS.c
        query = (
            select(table.start_at, table.known_at)
            .where(table.series == series)
            .order_by(table.start_at.desc(), table.id.desc())
            .limit(1)
        )
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return (
            (None, None) if row is None else (from_us(row.start_at) + HOUR, from_us(row.known_at))
        )

    def last_fetch(self, series: str) -> FetchRow | None:
        """Say how the newest polls went; None before the first."""
        return self._carbon.last_fetch(series)

    def fetched(
        self, series: str, at: datetime, *, ok: bool, detail: str = "", refused: bool = False
    ) -> None:
        """Record how a poll ended. `refused`: a person has to fix something."""
        self._carbon.fetched(series, at, ok=ok, detail=detail, refused=refused)

    def filled(self, series: str, *, at: datetime, since: datetime) -> None:
        """Record how far back the past has been asked for."""
        self._carbon.filled(series, deep_at=at, since=since)

    def prune(self, before: datetime, now: datetime) -> int:
        """Delete the hours that began before a moment, and what hours of the past do not need.

        Of an hour that is over, `day_ahead` alone is read. Returns how many rows went.
        """
        table = EXOGENOUS_POINTS.c
        recent = select(EXOGENOUS_POINTS).where(
            table.start_at.between(to_us(now - 9 * DAY), to_us(now - 2 * DAY))
        )
        with self._database.writing() as connection:
            rows: dict[tuple[str, str, int], list[tuple[int, ExogenousValue]]] = {}
            for row in connection.execute(recent):
                value = _value(row)
                if value is not None:
                    rows.setdefault((row.series, row.kind, row.start_at), []).append(
                        (row.id, value)
                    )
            spare = [
                id_
                for several in rows.values()
                for kept in [day_ahead(value for _, value in several)]
                for id_, value in several
                if value != kept
            ]
            which = (table.start_at < to_us(before)) | table.id.in_(spare)
            return connection.execute(delete(EXOGENOUS_POINTS).where(which)).rowcount


def _value(row: Row[Any]) -> ExogenousValue | None:
    """Read a row; None of a kind of another version."""
    if row.kind not in set(ExogenousKind):
        return None
    return ExogenousValue(
        series=row.series,
        kind=ExogenousKind(row.kind),
        start=from_us(row.start_at),
        value=row.milli / MILLI,
        known_at=from_us(row.known_at),
    )


def series_of(provider: str, zone: str) -> str:
    """Name a series in the journal; no carbon signal is named so."""
    return f"{EXOGENOUS}{provider}:{zone}"


def day_ahead(rows: Iterable[ExogenousValue]) -> ExogenousValue:
    """Choose what an hour of the past was forecast as a day before; else the first that was known.

    Args:
        rows: of one hour and kind, at least one, in any order.
    """
    by_age = sorted(rows, key=lambda each: each.known_at)
    early = [each for each in by_age if each.known_at <= each.start - DAY]
    return early[-1] if early else by_age[0]
