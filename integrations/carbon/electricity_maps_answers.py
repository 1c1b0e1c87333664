"""Decodes the answers of Electricity Maps, and checks that they match the request. Pure.

Invariant: a value is accepted only if its answer names the requested zone, no other factor type or
granularity, and is not the invented data of a sandbox key.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from wattmesh.errors import (
    AuthFailed,
    NoData,
    NotEntitled,
    SandboxData,
    SourceRefused,
    Transient,
    UnknownZone,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.rows import CarbonRow, DecodedRows, moment, number
from wattmesh.telemetry.readings import Quality

LISTS = ("history", "data", "forecast")
"""Keys of the rows in history, past-range and forecast, which are otherwise alike."""

STEPS = {
    "hourly": timedelta(hours=1),
    "15_minutes": timedelta(minutes=15),
    "5_minutes": timedelta(minutes=5),
}
"""Granularities, as the API spells them."""

UNIT = "gCO2eq/kWh"
RUNNING = "Electricity Maps, interval not over"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneQuery:
    """The request that an answer must match."""

    zone: str
    factor: str
    granularity: str

    @property
    def step(self) -> timedelta:
        """Length of an interval."""
        return STEPS[self.granularity]


def verdict(answer: ErrorAnswer) -> ErrorClass | None:
    """Classify an answer other than 200.

    Bodies are `{"error": ...}`, `{"status": "error", "message": ...}` or plain text.
    """
    words = answer.words.lower()
    if answer.status == 401:
        return ErrorClass(
            error=AuthFailed,
            advice="check the key; a free key is of one zone, and answers so for every other",
        )
    if answer.status == 403:
        return ErrorClass(
            error=NotEntitled,
            advice="the plan of this key covers not this zone or not this endpoint, or the key is "
            "not known",
        )
    strange = any(each in words for each in ("not found", "not exist", "unknown", "invalid"))
    if answer.status in (400, 404) and "zone" in words and strange:
        return ErrorClass(error=UnknownZone, advice="`wattmesh carbon providers` shows the zones")
    return ErrorClass(error=NoData) if answer.status == 404 else None


def observed(body: Any, asked: ZoneQuery, now: datetime) -> DecodedRows:
    """Decode past and current intervals.

    The current interval is provisional, because its value still changes. `updatedAt` is often
    before `datetime`, because the newest hours are estimated ahead.

    Raises:
        SandboxData, ZoneMismatch, SourceRefused: it does not match the request.
        Transient: it is malformed. NoData: it has no rows.
    """
    read: list[CarbonRow] = []
    refused: list[str] = []
    for row, start, value in _told(_checked(body, asked), refused):
        end = start + asked.step
        if start > now:
            continue
        read.append(
            CarbonRow(
                start=start,
                g_per_kwh=value,
                quality=_quality(row, end, now),
                issued_at=moment(row.get("updatedAt")) or min(end, now),
                model=_model(row, end, now),
            )
        )
    return DecodedRows(rows=tuple(read), refused=tuple(refused))


def forecast(body: Any, asked: ZoneQuery, now: datetime) -> DecodedRows:
    """Decode a forecast from the current interval on, with one issue time for all rows.

    Raises:
        SandboxData, ZoneMismatch, SourceRefused: it does not match the request.
        Transient: it is malformed. NoData: it has no rows.
    """
    rows = _checked(body, asked)
    issued_at = moment(body.get("updatedAt")) or now
    refused: list[str] = []
    read = tuple(
        CarbonRow(
            start=start,
            g_per_kwh=value,
            quality=Quality.FORECAST,
            issued_at=issued_at,
            model="Electricity Maps forecast",
        )
        for _, start, value in _told(rows, refused)
        if start + asked.step > now
    )
    return DecodedRows(rows=read, refused=tuple(refused))


def _told(
    rows: list[dict[str, Any]], refused: list[str]
) -> Iterator[tuple[dict[str, Any], datetime, float | None]]:
    """Yield rows with start and value; malformed ones are added to `refused`."""
    for row in rows:
        start = moment(row.get("datetime"))
        value, why = number(row, "carbonIntensity")
        if start is None or why:
            refused.append(_unread(row, why or "its datetime is not a time with a zone"))
        else:
            yield row, start, value


def _checked(body: Any, asked: ZoneQuery) -> list[dict[str, Any]]:
    """Return the rows of an answer that matches the request."""
    if not isinstance(body, dict):
        raise Transient(f"Electricity Maps answered {str(body)[:80]!r}, which is no object")
    listed = next((body[name] for name in LISTS if isinstance(body.get(name), list)), None)
    rows = [body] if listed is None and "carbonIntensity" in body else listed
    if rows is None:
        raise Transient(f"Electricity Maps answered {str(body)[:80]!r}, which has no values")
    _refuse_sandbox(body, rows)
    if not rows:
        raise NoData(f"Electricity Maps answered an empty list for {asked.zone}")
    if not all(isinstance(row, dict) for row in rows):
        raise Transient(f"Electricity Maps answered rows like {str(rows[0])[:80]!r}")
    for each in (body, *rows):
        _require_asked(each, asked)
    if not any("zone" in each for each in (body, *rows)):
        raise ZoneMismatch(f"Electricity Maps does not say that its answer is about {asked.zone}")
    return rows


def _refuse_sandbox(body: dict[str, Any], rows: list[Any]) -> None:
    """Refuse the values of sandbox keys, which come with status 200; either mark is enough."""
    marks = [str(body.get("_disclaimer", ""))]
    marks += [str(row.get("estimationMethod", "")) for row in rows if isinstance(row, dict)]
    marks += [str(row.get("_disclaimer", "")) for row in rows if isinstance(row, dict)]
    if any("sandbox" in mark.lower() for mark in marks):
        raise SandboxData(
            "Electricity Maps answered with invented values: this is a sandbox key; use a "
            "production key, or provider csv or static to try things out"
        )


def _require_asked(part: dict[str, Any], asked: ZoneQuery) -> None:
    """Refuse an answer, or a row, that does not match the request."""
    zone = part.get("zone", asked.zone)
    if zone != asked.zone:
        # For an unknown zone the API answers with the zone of the caller's address.
        raise ZoneMismatch(
            f"Electricity Maps answered for zone {zone!r} when asked for {asked.zone!r}"
        )
    factor = part.get("emissionFactorType") or asked.factor
    if factor != asked.factor:
        raise SourceRefused(
            f"Electricity Maps answered with {factor} factors when asked for {asked.factor}; "
            f"ask for factor = {factor!r} if that is all the plan has"
        )
    unit = str(part.get("unit") or UNIT)
    if unit.lower() != UNIT.lower():
        raise SourceRefused(f"Electricity Maps answered in {unit!r}; only {UNIT} is known")
    granularity = part.get("temporalGranularity") or asked.granularity
    if granularity != asked.granularity:
        raise SourceRefused(
            f"Electricity Maps answered {granularity} values when asked for {asked.granularity}; "
            f"set granularity = {granularity!r} if that is all the plan has"
        )


def _quality(row: dict[str, Any], end: datetime, now: datetime) -> Quality:
    """Quality of a value; without `isEstimated` it does not count as measured."""
    if end > now:
        return Quality.PROVISIONAL
    return Quality.MEASURED if row.get("isEstimated") is False else Quality.ESTIMATED


def _model(row: dict[str, Any], end: datetime, now: datetime) -> str:
    """Method behind a value that was not measured."""
    method = str(row.get("estimationMethod") or "")[:64]
    return method or (RUNNING if end > now else "")


def _unread(row: dict[str, Any], why: str) -> str:
    return f"Electricity Maps sent {str(row)[:120]!r}: {why}."
