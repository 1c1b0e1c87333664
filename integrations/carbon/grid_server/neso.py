"""Answers as NESO's Carbon Intensity API gives them: Great Britain, half hours, direct average.

Written from the published documentation and from recorded answers, not from our own client.
Invariant: `actual` is null until a half hour is over; regional answers have none at all.
"""

from datetime import datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.grid_server.answers import Reply, Request, moment
from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import HOUR, SimulatedGrid

ZONE = "GB"
HALF_HOUR = HOUR / 2
LONGEST = timedelta(days=14)
INDEX = ((60, "very low"), (140, "low"), (230, "moderate"), (330, "high"))
AHEAD = {"fw24h": timedelta(hours=24), "fw48h": timedelta(hours=48)}
OUTAGE = {
    "error": {"code": "500 Internal Server Error", "message": "Requested resource not found."}
}


def zone_of(request: Request) -> str:
    """Give the zone: there is one."""
    return ZONE


def answer(
    request: Request, grid: SimulatedGrid, suffering: AnswerFaults, delay: timedelta
) -> Reply:
    """Answer one request. `delay`: how long after its end a half hour gets its actual value."""
    try:
        span = _span(request)
    except InputInvalid as error:
        return bad_request(str(error))
    if span is None:
        return Reply(
            status=404, body="<html><body>Not here.</body></html>", content_type="text/html"
        )
    rows = [] if suffering.has(Fault.EMPTY) else _rows(span, request.now, grid, suffering, delay)
    if request.path[0] != "regional":
        return Reply(body={"data": rows})
    for row in rows:
        del row["intensity"]["actual"]
    return Reply(body={"data": [_place(request.path) | {"data": rows}]})


def _place(path: tuple[str, ...]) -> dict[str, Any]:
    """Name the region that a path asks for; a postcode lies in the region of its last digit."""
    last = path[-1]
    digits = "".join(each for each in last if each.isdigit())
    region = int(last) if last.isdigit() else int(digits[-1:] or "0") + 1
    named = {"regionid": region, "dnoregion": f"Region {region}", "shortname": f"Region {region}"}
    return named | ({"postcode": last} if path[-2:-1] == ("postcode",) else {})


def bad_request(message: str) -> Reply:
    """Give a refusal in its form."""
    return Reply(status=400, body={"error": {"code": "400 Bad Request", "message": message}})


def _span(request: Request) -> tuple[datetime, datetime] | None:
    """Say which half hours a path asks for: [first, end); None: there is no such path.

    Raises:
        InputInvalid: a time that cannot be read, or a span that is too long.
    """
    match request.path:
        case ("intensity",) | ("regional",):
            return _floor(request.now), request.now
        case ("intensity", "date"):
            midnight = request.now.replace(hour=0, minute=0, second=0, microsecond=0)
            return midnight, midnight + timedelta(days=1)
        case ("intensity", "date", date):
            midnight = moment(f"{date}T00:00Z")
            return midnight, midnight + timedelta(days=1)
        case ("intensity", "date", date, period):
            if not (period.isdigit() and 1 <= int(period) <= 48):
                raise InputInvalid("Please enter a valid period 1-48.")
            start = moment(f"{date}T00:00Z") + (int(period) - 1) * HALF_HOUR
            return start, start + HALF_HOUR
        case ("intensity", since, until) | (
            "regional",
            "intensity",
            since,
            until,
            "regionid" | "postcode",
            _,
        ):
            return _between(moment(since), until)
        case _:
            return None


def _between(since: datetime, until: str) -> tuple[datetime, datetime]:
    """Read the second half of `/{from}/{to}`, `/{from}/fw48h` or `/{from}/pt24h`."""
    if until == "pt24h":
        return _floor(since) - timedelta(hours=24), since
    end = since + AHEAD[until] if until in AHEAD else moment(until)
    if not since < end <= since + LONGEST:
        raise InputInvalid("Please enter a valid date range of at most 14 days.")
    first = _floor(since)
    # On a border the real one begins with the half hour before it.
    return (first - HALF_HOUR if first == since else first), end


def _rows(
    span: tuple[datetime, datetime],
    now: datetime,
    grid: SimulatedGrid,
    suffering: AnswerFaults,
    delay: timedelta,
) -> list[dict[str, Any]]:
    at, end = span
    if suffering.has(Fault.EARLY_FIRST):
        at -= HALF_HOUR
    rows = []
    while at < end and at < now + timedelta(hours=48):
        if not suffering.hits(Fault.GAP, at):
            rows.append(_row(at, now, grid, suffering, delay))
        at += HALF_HOUR
    return rows


def _row(
    at: datetime, now: datetime, grid: SimulatedGrid, suffering: AnswerFaults, delay: timedelta
) -> dict[str, Any]:
    # What the last forecast before it said stays printed for ever.
    issued = min(now, at - HALF_HOUR)
    forecast = grid.expected(ZONE, at, _floor(issued), HALF_HOUR)
    actual: int | None = None
    if at + HALF_HOUR + delay <= now and not suffering.has(Fault.WITHOUT_ACTUAL):
        known = grid.reported(
            ZONE, at, max(now, at + HALF_HOUR + grid.ripening.measured_after), HALF_HOUR
        )
        actual = round(known.g_per_kwh * (1.2 if suffering.hits(Fault.REVISED, at) else 1.0))
        if suffering.hits(Fault.ZERO, at):
            actual = 0
        if suffering.hits(Fault.NULL, at):
            actual = None
    shown = forecast if actual is None else actual
    index = next((word for limit, word in INDEX if shown < limit), "very high")
    return {
        "from": _text(at),
        "to": _text(at + HALF_HOUR),
        "intensity": {"forecast": int(forecast), "actual": actual, "index": index},
    }


def _floor(at: datetime) -> datetime:
    """Give the start of the half hour that holds a moment."""
    return at.replace(minute=at.minute // 30 * 30, second=0, microsecond=0)


def _text(at: datetime) -> str:
    """Write a time as NESO does: no seconds."""
    return f"{at:%Y-%m-%dT%H:%MZ}"
