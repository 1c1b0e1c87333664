"""Forecasts, each kept whole as it was issued, and the measured skill of each source.

Invariant: an issue is one row that is never changed, so no reader can mix two issues. A decision
keeps the id of the issue it rested on, and that issue is not pruned while the decision exists.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.prepared import prepared
from wattmesh.controller.journal.database.tables import CARBON_FORECASTS, CARBON_SKILL, DECISIONS
from wattmesh.controller.journal.database.values import MICROSECOND, from_us, to_text, to_us, upsert
from wattmesh.policies.decision import Climatology, IntensitySlot, Rung
from wattmesh.telemetry.carbon import CarbonPoint, Signal

ISSUES_KEPT = timedelta(days=4)
"""Longer than any forecast reaches, so that an issue can be compared with what was observed."""

AHEAD = timedelta(hours=1)
"""Clocks differ: an issue that is dated at most this far ahead of ours still counts."""

BLEND, PROFILE = "blend", "profile"
"""Our own sources: the provider's forecast blended with ours, and ours from its history alone."""

MILLI = 1000.0
_FORECAST = select(CARBON_FORECASTS).where(CARBON_FORECASTS.c.id == bindparam("which"))
_USUAL = select(CARBON_SKILL.c.usual).where(CARBON_SKILL.c.signal == bindparam("of"))
_COVERING = (
    select(CARBON_FORECASTS)
    .where(CARBON_FORECASTS.c.signal == bindparam("of"))
    .where(CARBON_FORECASTS.c.first_at <= bindparam("moment"))
    .where(CARBON_FORECASTS.c.last_at > bindparam("moment"))
    .order_by(CARBON_FORECASTS.c.issued_at.desc(), CARBON_FORECASTS.c.id.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One issue of a forecast.

    Attributes:
        id: primary key; 0 before it is stored.
        rung: ISSUED when the provider's own forecast is in it, PROFILE when made of history alone.
        source: who made it: the provider's name, or ours (`BLEND`, `PROFILE`).
        issued_at: when the provider says it was issued, or when ours was made.
        model: what made it, for people.
        slots: oldest first, without gaps.
        parts: what each source that ours was made of said alone, as JSON text; "" of a provider's.
    """

    signal: Signal
    rung: Rung
    source: str
    issued_at: datetime
    fetched_at: datetime
    slots: tuple[IntensitySlot, ...]
    model: str = ""
    parts: str = ""
    id: int = 0


class ForecastStore:
    """The tables of forecasts and of their skill."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self._read: dict[int, Forecast] = {}

    def store(self, forecast: Forecast) -> bool:
        """Append an issue; False when it is empty or equals the newest of its source."""
        if not forecast.slots:
            return False
        values = _values(forecast)
        table = CARBON_FORECASTS.c
        newest = (
            select(table.issued_at, table.slots)
            .where(table.signal == values["signal"], table.source == forecast.source)
            .order_by(table.id.desc())
            .limit(1)
        )
        with self._database.writing() as connection:
            held = connection.execute(newest).one_or_none()
            if held is not None and (held.issued_at, held.slots) == (
                values["issued_at"],
                values["slots"],
            ):
                return False
            connection.execute(insert(CARBON_FORECASTS), [values])
        return True

    def newest(self, signal: Signal, now: datetime | None = None) -> tuple[Forecast, ...]:
        """Return the newest issue of each source that has one.

        Args:
            signal: which grid signal is forecast.
            now: the wall clock. An issue dated more than `AHEAD` after it has a wrong date and is
                passed over. None: no issue is passed over.
        """
        with self._database.reading() as connection:
            found = (
                self._newest_of(connection, signal, source, now)
                for source in (signal.provider, BLEND, PROFILE)
            )
            return tuple(each for each in found if each is not None)

    def get(self, id_: int) -> Forecast | None:
        """Give one issue; None when it is gone."""
        with self._database.reading() as connection:
            row = connection.execute(_FORECAST, {"which": id_}).one_or_none()
        return _forecast(row) if row else None

    def signals(self, ids: Collection[int]) -> dict[int, str]:
        """Map the ids of these issues that are still stored to their signals."""
        table = CARBON_FORECASTS.c
        with self._database.reading() as connection:
            rows = connection.execute(select(table.id, table.signal).where(table.id.in_(ids))).all()
        return {row.id: row.signal for row in rows}

    def made(self, signal: Signal, since: datetime) -> tuple[Forecast, ...]:
        """List our own issues made since then, oldest first."""
        table = CARBON_FORECASTS.c
        query = (
            select(CARBON_FORECASTS)
            .where(table.signal == str(signal), table.source.in_((BLEND, PROFILE)))
            .where(table.fetched_at >= to_us(since))
            .order_by(table.id)
        )
        with self._database.reading() as connection:
            return tuple(map(_forecast, connection.execute(query)))

    def expected(self, signal: Signal, at: datetime) -> tuple[IntensitySlot, Forecast] | None:
        """Give the slot that covers `at` in the newest issue that has one, and that issue."""
        wanted = {"of": str(signal), "moment": to_us(at)}
        with self._database.reading() as connection:
            row = connection.execute(_COVERING, wanted).one_or_none()
        if row is None:
            return None
        found = _forecast(row)
        slot = next((each for each in found.slots if each.start <= at < each.end), None)
        return (slot, found) if slot else None

    def prune(self, before: datetime) -> int:
        """Delete issues that ended before a moment, if no decision rests on them; count them."""
        table = CARBON_FORECASTS.c
        used = select(DECISIONS.c.forecast).where(DECISIONS.c.forecast.is_not(None))
        with self._database.writing() as connection:
            old = delete(CARBON_FORECASTS).where(table.last_at < to_us(before))
            return connection.execute(old.where(table.id.not_in(used))).rowcount

    def skill(self, signal: Signal) -> str:
        """Give the skill of a signal's sources as it was written; "" before the first."""
        query = select(CARBON_SKILL.c.skill).where(CARBON_SKILL.c.signal == str(signal))
        with self._database.reading() as connection:
            found: str | None = connection.execute(query).scalar()
        return found or ""

    def keep_skill(self, signal: Signal, skill: str, at: datetime) -> None:
        """Write down the skill of a signal's sources."""
        with self._database.writing() as connection:
            upsert(
                connection,
                CARBON_SKILL,
                [{"signal": str(signal), "skill": skill, "at": to_us(at)}],
            )

    def usual(self, signal: Signal) -> Climatology | None:
        """Give the usual day of a signal; None before there is one."""
        with self._database.reading() as connection:
            found: str | None = connection.execute(_USUAL, {"of": str(signal)}).scalar()
        if not found:
            return None
        told = json.loads(found)
        return Climatology(hours=tuple(told["hours"]), low=told["low"], high=told["high"])

    def keep_usual(self, signal: Signal, usual: Climatology) -> None:
        """Write down the usual day of a signal."""
        row = {"signal": str(signal), "usual": to_text(asdict(usual))}
        with self._database.writing() as connection:
            upsert(connection, CARBON_SKILL, [row])

    def _newest_of(
        self, connection: Connection, signal: Signal, source: str, now: datetime | None
    ) -> Forecast | None:
        """Read the newest issue of one source; one that was read before comes from memory."""
        latest = None if now is None else to_us(now + AHEAD)
        newest = _newest_id(of=str(signal), source=source, latest=latest)
        id_ = connection.execute(*newest).scalar()
        known = self._read.get(id_) if id_ is not None else None
        if id_ is not None and known is None:
            row = connection.execute(_FORECAST, {"which": id_}).one()
            known = _forecast(row)
            others = {
                key: each
                for key, each in self._read.items()
                if (each.signal, each.source) != (signal, source)
            }
            self._read = {**others, id_: known}
        return known


@prepared
def _newest_id(of: Any, source: Any, latest: Any) -> Any:
    """Select the newest issue of a source, dated not after `latest`."""
    table = CARBON_FORECASTS.c
    query = select(table.id).where(table.signal == of, table.source == source)
    if latest is not None:
        query = query.where(table.issued_at <= latest)
    return query.order_by(table.issued_at.desc(), table.id.desc()).limit(1)


def issues(points: Sequence[CarbonPoint]) -> tuple[Forecast, ...]:
    """Group the forecast points of one answer into issues, one per signal and moment of issue.

    A moment of issue after the fetch is set to the fetch: otherwise that issue would count as the
    newest until its date.
    """
    by_issue: dict[tuple[Signal, datetime], list[CarbonPoint]] = {}
    for point in points:
        issued_at = min(point.issued_at, point.fetched_at)
        by_issue.setdefault((point.signal, issued_at), []).append(point)
    return tuple(
        Forecast(
            signal=signal,
            rung=Rung.ISSUED,
            source=signal.provider,
            issued_at=issued_at,
            fetched_at=max(each.fetched_at for each in found),
            model=found[0].model,
            slots=unbroken(
                [
                    IntensitySlot(
                        start=each.start,
                        end=each.end,
                        g_per_kwh=each.g_per_kwh,
                        low_g_per_kwh=each.low_g_per_kwh,
                        high_g_per_kwh=each.high_g_per_kwh,
                    )
                    for each in sorted(found, key=lambda each: each.start)
                ]
            ),
        )
        for (signal, issued_at), found in sorted(by_issue.items(), key=lambda item: item[0][1])
    )


def unbroken(slots: Sequence[IntensitySlot]) -> tuple[IntensitySlot, ...]:
    """Keep the slots before the first gap: those after it do not continue the forecast."""
    kept = list(slots[:1])
    for slot in slots[1:]:
        if slot.start != kept[-1].end:
            break
        kept.append(slot)
    return tuple(kept)


def _values(forecast: Forecast) -> dict[str, Any]:
    """Give the row of an issue: of each slot the end, in us after the first start, and mg/kWh."""
    first = forecast.slots[0].start
    return {
        "signal": str(forecast.signal),
        "rung": forecast.rung.value,
        "source": forecast.source,
        "issued_at": to_us(forecast.issued_at),
        "fetched_at": to_us(forecast.fetched_at),
        "model": forecast.model,
        "parts": forecast.parts,
        "first_at": to_us(first),
        "last_at": to_us(forecast.slots[-1].end),
        "slots": to_text(
            [
                [
                    (each.end - first) // MICROSECOND,
                    *map(_milli, (each.g_per_kwh, each.low_g_per_kwh, each.high_g_per_kwh)),
                ]
                for each in forecast.slots
            ]
        ),
    }


def _milli(value: float | None) -> int | None:
    return None if value is None else round(value * MILLI)


def _grams(value: int | None) -> float | None:
    return None if value is None else value / MILLI


def _forecast(row: Row[Any]) -> Forecast:
    start = first = from_us(row.first_at)
    slots = []
    for until, value, low, high in json.loads(row.slots):
        end = first + until * MICROSECOND
        slots.append(
            IntensitySlot(
                start=start,
                end=end,
                g_per_kwh=value / MILLI,
                low_g_per_kwh=_grams(low),
                high_g_per_kwh=_grams(high),
            )
        )
        start = end
    return Forecast(
        signal=Signal.parse(row.signal),
        rung=Rung(row.rung),
        source=row.source,
        issued_at=from_us(row.issued_at),
        fetched_at=from_us(row.fetched_at),
        model=row.model,
        parts=row.parts,
        slots=tuple(slots),
        id=row.id,
    )
