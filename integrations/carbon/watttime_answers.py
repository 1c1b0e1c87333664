"""What WattTime's answers say, and when they are not what was asked for.

Pure. Invariant: a value becomes a row only when its answer names the region and signal that were
asked and the one unit that is known, pounds per megawatt-hour; a percentile is no intensity.
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
from wattmesh.integrations.carbon.reading.answers import Answer, Verdict
from wattmesh.integrations.carbon.reading.rows import Reading, Row, moment, number
from wattmesh.telemetry.readings import Quality

G_PER_KWH = 0.45359237
"""Grams per kilowatt-hour in a pound per megawatt-hour: the pound of 1959, exactly."""

UNIT = "lbs_co2_per_mwh"
PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an answer must be about. `step`: length of an interval."""

    region: str
    signal_type: str
    step: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The rows of an answer. `model`: the date of the model behind them; "" when not told."""

    reading: Reading
    model: str


def login_verdict(answer: Answer) -> Verdict | None:
    """Say what an answer to a login means: a wrong password gets 403 in HTML from the proxy."""
    if answer.status in (401, 403):
        return Verdict(error=AuthFailed, advice="check username and password of WattTime")
    return None


def verdict(answer: Answer) -> Verdict | None:
    """Say what an answer other than 200 means."""
    words = answer.words.lower()
    if answer.status == 403 and "html" not in answer.content_type and "<html" not in words:
        return Verdict(
            error=NotEntitled,
            advice="the plan of this user covers not this region or not this endpoint; without a "
            "plan all of CAISO_NORTH may be asked",
        )
    if answer.status == 403:
        return Verdict(error=AuthFailed, advice="check username and password of WattTime")
    strange = any(each in words for each in ("invalid", "unknown", "not found", "not exist"))
    if answer.status in (400, 404, 422) and "region" in words and strange:
        return Verdict(error=UnknownZone, advice="ask region-from-loc of WattTime for its name")
    return None


def token(body: Any) -> str:
    """Read the token of a login.

    Raises:
        Transient: there is none.
    """
    value = body.get("token") if isinstance(body, dict) else None
    if not isinstance(value, str) or not value:
        raise Transient("WattTime's login answered without a token")
    return value


def observed(body: Any, asked: Asked, now: datetime) -> Told:
    """Read what was; imputed values are estimated, the running interval is provisional.

    Raises:
        ZoneMismatch, SourceRefused: it is not what was asked for.
        Transient: not of the documented form. NoData: it holds nothing.
    """
    return _read(body, asked, now, ahead=False)


def forecast(body: Any, asked: Asked, now: datetime) -> Told:
    """Read a forecast from the running interval on; all of it is one issue.

    Raises:
        ZoneMismatch, SourceRefused: it is not what was asked for.
        Transient: not of the documented form. NoData: it holds nothing.
    """
    return _read(body, asked, now, ahead=True)


def _read(body: Any, asked: Asked, now: datetime, *, ahead: bool) -> Told:
    """Read the rows that are over or running, or of a forecast those from the running one on."""
    rows, meta = _checked(body, asked)
    model = _model(meta)
    made: list[Row] = []
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
            Row(
                start=start,
                g_per_kwh=None if value is None else value * G_PER_KWH,
                quality=_quality(row, ahead=ahead, over=over),
                issued_at=_issued_at(row, meta, start + asked.step, now),
                model=f"{asked.signal_type} {model}".strip(),
            )
        )
    return Told(reading=Reading(rows=tuple(made), refused=tuple(refused)), model=model)


def _checked(body: Any, asked: Asked) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Give rows and meta of an answer that is about what was asked."""
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
    """Raise for a unit that is not known to be an intensity."""
    if unit == PERCENTILE:
        raise SourceRefused(
            "WattTime answered percentiles: they rank the hours of a region and are no intensity"
        )
    if unit != UNIT:
        raise SourceRefused(f"WattTime answered in {unit!r}; only {UNIT} is known")


def _model(meta: dict[str, Any]) -> str:
    """Give the date of the model; a new one re-bases the series."""
    model = meta.get("model")
    date = model.get("date") if isinstance(model, dict) else None
    return str(date or "")[:32]


def _quality(row: dict[str, Any], *, ahead: bool, over: bool) -> Quality:
    """Say how a value came to be."""
    if ahead:
        return Quality.FORECAST
    if not over:
        return Quality.PROVISIONAL
    return Quality.ESTIMATED if row.get("imputed_data_used") else Quality.MEASURED


def _issued_at(row: dict[str, Any], meta: dict[str, Any], end: datetime, now: datetime) -> datetime:
    """Say when a value was said."""
    return moment(row.get("last_updated")) or moment(meta.get("generated_at")) or min(end, now)


def _warnings(meta: dict[str, Any]) -> list[str]:
    """Give what the provider warns of, one sentence each."""
    warnings = meta.get("warnings")
    listed = warnings if isinstance(warnings, list) else []
    return [
        f"WattTime warns: {str(each.get('message') or 'no message')[:160].rstrip('.')} "
        f"({str(each.get('type') or 'no type')[:40]})."
        for each in listed
        if isinstance(each, dict)
    ]
