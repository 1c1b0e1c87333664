"""Decodes the answers of WattTime, and checks that they match the request. Pure.

Invariant: a value is accepted only if its answer names the requested region and signal and the unit
pounds per megawatt-hour; a percentile is not an intensity.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from wattmesh.errors import (
    AuthFailed,
    NoData,
    NotEntitled,
    SourceRefused,
    Transient,
    UnknownZone,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.rows import CarbonRow, DecodedRows, moment, number
from wattmesh.telemetry.readings import Quality

G_PER_KWH = 0.45359237
"""Grams per kilowatt-hour in a pound per megawatt-hour, exact by the pound of 1959."""

UNIT = "lbs_co2_per_mwh"
PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionQuery:
    """The request that an answer must match. `step`: length of an interval."""

    region: str
    signal_type: str
    step: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRows:
    """The rows of an answer. `model`: the date of the model behind them; "" when unknown."""

    reading: DecodedRows
    model: str


def login_verdict(answer: ErrorAnswer) -> ErrorClass | None:
    """Classify an answer to a login: the proxy answers a wrong password with 403 in HTML."""
    if answer.status in (401, 403):
        return ErrorClass(error=AuthFailed, advice="check username and password of WattTime")
    return None


def verdict(answer: ErrorAnswer) -> ErrorClass | None:
    """Classify an answer other than 200."""
    words = answer.words.lower()
    if answer.status == 403 and "html" not in answer.content_type and "<html" not in words:
        return ErrorClass(
            error=NotEntitled,
            advice="the plan of this user covers not this region or not this endpoint; without a "
            "plan all of CAISO_NORTH may be asked",
        )
    if answer.status == 403:
        return ErrorClass(error=AuthFailed, advice="check username and password of WattTime")
    strange = any(each in words for each in ("invalid", "unknown", "not found", "not exist"))
    if answer.status in (400, 404, 422) and "region" in words and strange:
        return ErrorClass(error=UnknownZone, advice="ask region-from-loc of WattTime for its name")
    return None


def token(body: Any) -> str:
    """Decode the token of a login.

    Raises:
        Transient: the answer has none.
    """
    value = body.get("token") if isinstance(body, dict) else None
    if not isinstance(value, str) or not value:
        raise Transient("WattTime's login answered without a token")
    return value


def observed(body: Any, asked: RegionQuery, now: datetime) -> AnswerRows:
    """Decode past and current intervals; imputed values are estimated, the current is provisional.

    Raises:
        ZoneMismatch, SourceRefused: it does not match the request.
        Transient: it is malformed. NoData: it has no rows.
    """
    return _read(body, asked, now, ahead=False)


def forecast(body: Any, asked: RegionQuery, now: datetime) -> AnswerRows:
    """Decode a forecast from the current interval on, with one issue time for all rows.

    Raises:
        ZoneMismatch, SourceRefused: it does not match the request.
        Transient: it is malformed. NoData: it has no rows.
    """
    return _read(body, asked, now, ahead=True)


def _read(body: Any, asked: RegionQuery, now: datetime, *, ahead: bool) -> AnswerRows:
    """Decode past and current rows, or with `ahead` current and future ones."""
    rows, meta = _checked(body, asked)
    model = _model(meta)
    made: list[CarbonRow] = []
    refused = _warnings(meta)
    for row in rows:
        start = moment(row.get("point_time"))
        value, why = number(row, "value")
        if start is None or why:
            why = why or "its point_time is not a time with a zone"
            refused.append(f"WattTime sent {str(row)[:120]!r}: {why}.")
            continue
        over = start + asked.step <= now
        if (ahead and over) or (not ahead and start > now):
            continue
        made.append(
            CarbonRow(
                start=start,
                g_per_kwh=None if value is None else value * G_PER_KWH,
                quality=_quality(row, ahead=ahead, over=over),
                issued_at=_issued_at(row, meta, start + asked.step, now),
                model=f"{asked.signal_type} {model}".strip(),
            )
        )
    return AnswerRows(reading=DecodedRows(rows=tuple(made), refused=tuple(refused)), model=model)


def _checked(body: Any, asked: RegionQuery) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows and meta of an answer that matches the request."""
    rows = body.get("data") if isinstance(body, dict) else None
    meta = body.get("meta") if isinstance(body, dict) else None
    if not isinstance(rows, list) or not isinstance(meta, dict):
        raise Transient(f"WattTime answered {str(body)[:80]!r}, which has no data and meta")
    if not all(isinstance(row, dict) for row in rows):
        raise Transient(f"WattTime answered rows like {str(rows[0])[:80]!r}")
    region, told = meta.get("region"), meta.get("signal_type")
    if region != asked.region:
        raise ZoneMismatch(f"WattTime answered for region {region!r}, asked for {asked.region!r}")
    if told is not None and told != asked.signal_type:
        raise SourceRefused(f"WattTime answered {told!r} when asked for {asked.signal_type!r}")
    _require_unit(meta.get("units"))
    period_s = meta.get("data_point_period_seconds")
    if period_s is not None and period_s != asked.step.total_seconds():
        raise SourceRefused(
            f"WattTime answered values of {period_s} s; {asked.signal_type} is known to have "
            f"{asked.step.total_seconds():.0f} s"
        )
    if not rows:
        raise NoData(f"WattTime answered an empty list for {asked.region}")
    return rows, meta


def _require_unit(unit: Any) -> None:
    """Refuse a unit that is not known to be an intensity."""
    if unit == PERCENTILE:
        raise SourceRefused(
            "WattTime answered percentiles: they rank the hours of a region and are no intensity"
        )
    if unit != UNIT:
        raise SourceRefused(f"WattTime answered in {unit!r}; only {UNIT} is known")


def _model(meta: dict[str, Any]) -> str:
    """The date of the model; a new one shifts the series."""
    model = meta.get("model")
    date = model.get("date") if isinstance(model, dict) else None
    return str(date or "")[:32]


def _quality(row: dict[str, Any], *, ahead: bool, over: bool) -> Quality:
    if ahead:
        return Quality.FORECAST
    if not over:
        return Quality.PROVISIONAL
    return Quality.ESTIMATED if row.get("imputed_data_used") else Quality.MEASURED


def _issued_at(row: dict[str, Any], meta: dict[str, Any], end: datetime, now: datetime) -> datetime:
    """The time at which a value was published."""
    return moment(row.get("last_updated")) or moment(meta.get("generated_at")) or min(end, now)


def _warnings(meta: dict[str, Any]) -> list[str]:
    warnings = meta.get("warnings")
    listed = warnings if isinstance(warnings, list) else []
    return [
        f"WattTime warns: {str(each.get('message') or 'no message')[:160].rstrip('.')} "
        f"({str(each.get('type') or 'no type')[:40]})."
        for each in listed
        if isinstance(each, dict)
    ]
