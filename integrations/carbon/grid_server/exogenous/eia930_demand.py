"""Rows as EIA's open data API gives them of demand (type D) and its day-ahead forecast (type DF).

Written from the published documentation, not from our own client. Invariant: a forecast of an
Eastern day is told from six in the evening of the day before on, or late from the last moment at
which the form's instructions allow it; what was measured, hours after it.
"""

from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from typing import Any
from zoneinfo import ZoneInfo

from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import HOUR, noise

PATH = ("v2", "electricity", "rto", "region-data", "data")
EASTERN = ZoneInfo("America/New_York")
EVENING, MORNING = clock_time(18), clock_time(7)
DAY = timedelta(days=1)
AHEAD = timedelta(days=2)
NAMES = {"D": "Demand", "DF": "Day-ahead demand forecast"}
PERIOD = "%Y-%m-%dT%H"
SPIKE = 9_000_000_000


def demand_mwh(zone: str, start: datetime) -> int:
    """Return what is drawn in the hour that begins at `start`."""
    return round(20000 * (1 + 0.15 * noise(zone, "demand", start)))


def forecast_mwh(zone: str, start: datetime) -> int:
    """Return the day-ahead forecast of that hour, up to 4 % off."""
    return round(demand_mwh(zone, start) * (1 + 0.04 * noise(zone, "demand forecast", start)))


def told_from(start: datetime, *, late: bool) -> datetime:
    """Return from when the forecast of an hour is told."""
    day = start.astimezone(EASTERN).date()
    told = (
        datetime.combine(day, MORNING, EASTERN)
        if late
        else datetime.combine(day - DAY, EVENING, EASTERN)
    )
    return told.astimezone(UTC)


def hour_rows(
    zone: str, start: datetime, now: datetime, suffering: AnswerFaults, lag: timedelta
) -> list[dict[str, Any]]:
    """Return the rows of one hour. `lag`: how long after its end its demand is told."""
    values = {}
    if start + HOUR + lag <= now:
        values["D"] = demand_mwh(zone, start)
    if told_from(start, late=suffering.has(Fault.LATE_ISSUE)) <= now:
        values["DF"] = forecast_mwh(zone, start)
    return [_row(zone, start, each, value, suffering) for each, value in values.items()]


def _row(
    zone: str, start: datetime, kind: str, mwh: int, suffering: AnswerFaults
) -> dict[str, Any]:
    value: int | None = mwh
    if suffering.hits(Fault.REVISED, start):
        value = round(1.2 * mwh)
    for fault, instead in ((Fault.SPIKE, SPIKE), (Fault.ZERO, 0), (Fault.NULL, None)):
        if suffering.hits(fault, start):
            value = instead
    text = value is not None and not suffering.has(Fault.NUMBERS)
    respondent = "ELSE" if suffering.has(Fault.WRONG_ZONE) else zone
    return {
        "period": f"{start + HOUR:{PERIOD}}",
        "respondent": respondent,
        "respondent-name": f"{respondent} (invented)",
        "type": kind,
        "type-name": NAMES[kind],
        "value": str(value) if text else value,
        "value-units": "gigawatthours" if suffering.has(Fault.WRONG_UNIT) else "megawatthours",
    }
