"""Answers as NESO's data portal gives them: CKAN, half hours of wind in Great Britain.

Written from the published documentation and recorded tables, not from our own client. One resource
tells two weeks ahead and is made anew every three hours; the other keeps what was forecast a day
ahead, taken in on the morning of the day itself.

Invariant: no row is told before the moment that it bears; periods are numbered in London's days.
"""

import re
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from wattmesh.integrations.carbon.grid_server.answers import Reply, Request
from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import HOUR, noise

LONDON = ZoneInfo("Europe/London")
HALF_HOUR, DAY = HOUR / 2, timedelta(days=1)
REACH = timedelta(days=14)
CAPACITY_MW = 25_000
FORECAST = "93c3048e-1dab-4057-a2a9-417540583929"
ARCHIVE = "7524ec65-f782-4258-aaf8-5b926c17b966"
NEWER = {
    FORECAST: "00000000-1dab-4057-a2a9-417540583929",
    ARCHIVE: "00000000-f782-4258-aaf8-5b926c17b966",
}
"""Ids after the resources were published anew."""
PACKAGES = {
    "14-days-ahead-wind-forecasts": ("14 Days Ahead Wind Forecast", FORECAST),
    "day-ahead-wind-forecast": ("Historic Day Ahead Wind Forecasts", ARCHIVE),
}
SPIKE = 9e9


class Columns(NamedTuple):
    """How a resource names its columns, and what stands behind its times."""

    time: str
    period: str
    value: str
    made: str
    zone: str


PAST = Columns("Datetime_GMT", "Settlement_period", "Incentive_forecast", "Forecast_Timestamp", "")
AHEAD = Columns("Datetime", "Settlement_Period", "Wind_Forecast", "ForecastDateTime", "Z")
_SQL = re.compile(
    r'SELECT \* FROM "(?P<id>[0-9a-f-]{36})" WHERE "(?P<column>\w+)" >= \'(?P<since>[\dT:-]{19})\' '
    r'AND "(?P=column)" < \'(?P<until>[\dT:-]{19})\' ORDER BY "(?P=column)" LIMIT (?P<limit>\d+)'
)


def answer(request: Request, suffering: AnswerFaults) -> Reply:
    """Answer one request below `/api/3/action/`."""
    action = request.path[-1]
    if suffering.has(Fault.NOT_SUCCESS):
        return _refused("Internal Error", "The data store is not available.", status=200)
    if action == "package_show":
        return _package(request.query.get("id", ""), suffering)
    if action == "datastore_search_sql":
        return _searched(request, suffering)
    return _refused("Bad request", f"Action name not known: {action}", status=400)


def _searched(request: Request, suffering: AnswerFaults) -> Reply:
    """Answer a question of SQL in the one form that is understood here."""
    asked = _SQL.fullmatch(request.query.get("sql", ""))
    if asked is None:
        return _refused("Validation Error", "Query is not a single statement.", status=409)
    moved = suffering.has(Fault.MOVED)
    ids = {(NEWER[each] if moved else each): each for each in NEWER}
    resource = ids.get(asked["id"])
    if resource is None:
        return _refused("Not Found Error", f'Not found: Resource "{asked["id"]}"', status=404)
    if asked["column"] != (PAST if resource == ARCHIVE else AHEAD).time:
        return _refused("Validation Error", f"column {asked['column']} does not exist", status=409)
    since, until = (datetime.fromisoformat(f"{asked[each]}+00:00") for each in ("since", "until"))
    rows = [] if suffering.has(Fault.EMPTY) else _rows(resource, since, until, request, suffering)
    result = {"sql": asked[0], "records": rows[: int(asked["limit"])], "fields": []}
    return Reply(body={"help": "", "success": True, "result": result})


def wind_mw(at: datetime) -> int:
    """Return what the metered wind farms make in the half hour that begins at `at`."""
    half_day = at.replace(hour=at.hour // 12 * 12, minute=0)
    return round(CAPACITY_MW * (0.45 + 0.4 * noise("GB", "wind", half_day)))


def forecast_mw(at: datetime, made: datetime) -> int:
    """Return what was forecast of it, up to 5 % off, another way each time that it is made."""
    return round(wind_mw(at) * (1 + 0.05 * noise("GB", f"wind {made:%Y%m%d%H}", at)))


def made_ahead(now: datetime, *, late: bool) -> datetime:
    """Return when the newest forecast of two weeks was made; `late`: a day and a half ago."""
    until = now - (1.5 * DAY if late else timedelta())
    made = until.replace(hour=until.hour // 3 * 3, minute=30, second=0, microsecond=0)
    return made if made <= until else made - 3 * HOUR


def taken_in(at: datetime, *, late: bool) -> datetime:
    """Return when the archive took in the half hour: its day's morning, or two days later."""
    day = at.astimezone(LONDON).date() + (2 * DAY if late else timedelta())
    return datetime.combine(day, clock_time(8, 45), UTC)


def _package(name: str, suffering: AnswerFaults) -> Reply:
    found = PACKAGES.get(name)
    if found is None:
        return _refused("Not Found Error", f"Not found: {name}", status=404)
    title, resource = found
    now = NEWER[resource] if suffering.has(Fault.MOVED) else resource
    resources = [
        {"id": "90e581e9-2d7f-4eaa-8fe0-6e323ee0f5f7", "name": "Wind BMU Forecast"},
        {"id": now, "name": title, "datastore_active": True, "format": "CSV"},
    ]
    result = {"name": name, "resources": resources}
    return Reply(body={"help": "", "success": True, "result": result})


def _rows(
    resource: str, since: datetime, until: datetime, request: Request, suffering: AnswerFaults
) -> list[dict[str, Any]]:
    """Return the rows of a resource in a span, oldest first."""
    now, late = request.now, suffering.has(Fault.LATE_ISSUE)
    made = made_ahead(now, late=late)
    rows, at = [], since
    while at < until:
        if suffering.hits(Fault.GAP, at):
            pass
        elif resource == FORECAST:
            if made - HOUR <= at < made + REACH:
                rows.append(_row(AHEAD, at, forecast_mw(at, made), made, suffering))
        elif taken_in(at, late=late) <= now:
            rows += _of_archive(at, now, suffering)
        at += HALF_HOUR
    return rows


def _of_archive(at: datetime, now: datetime, suffering: AnswerFaults) -> list[dict[str, Any]]:
    """Return one row, and where it was put right a second one that bears a later moment."""
    taken = taken_in(at, late=suffering.has(Fault.LATE_ISSUE))
    made = datetime.combine(at.astimezone(LONDON).date() - DAY, clock_time(8), UTC)
    value = forecast_mw(at, made)
    rows = [_row(PAST, at, value, taken, suffering)]
    if suffering.hits(Fault.REVISED, at):
        again = min(now, taken + 21 * DAY)
        rows.insert(0, _row(PAST, at, round(1.2 * value), again, suffering))
    return rows


def _row(
    columns: Columns, at: datetime, mw: int, made: datetime, suffering: AnswerFaults
) -> dict[str, Any]:
    """Write one half hour."""
    local = at.astimezone(LONDON)
    midnight = datetime.combine(local.date(), clock_time(), LONDON).astimezone(UTC)
    scale = 1000 if suffering.has(Fault.WRONG_UNIT) else 1
    told: float | None = mw / scale
    if columns is AHEAD and suffering.hits(Fault.REVISED, at):
        told = round(1.2 * mw)
    if suffering.hits(Fault.SPIKE, at):
        told = SPIKE
    if suffering.hits(Fault.NULL, at):
        told = None
    written = local if suffering.has(Fault.LOCAL_TIME) else at
    row = {
        columns.time: f"{written:%Y-%m-%dT%H:%M:%S}{columns.zone}",
        "Date": f"{local:%Y-%m-%d}",
        columns.period: (at - midnight) // HALF_HOUR + 1,
        "Capacity": CAPACITY_MW / scale,
        columns.value: told,
        columns.made: f"{made:%Y-%m-%dT%H:%M:%S}{columns.zone}",
    }
    return row | ({"Generator_Name": "ONE-1"} if suffering.has(Fault.WRONG_ZONE) else {})


def _refused(kind: str, message: str, *, status: int) -> Reply:
    """Give a refusal in CKAN's form."""
    error = {"__type": kind, "message": message}
    return Reply(status=status, body={"help": "", "success": False, "error": error})
