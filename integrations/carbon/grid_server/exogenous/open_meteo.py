"""Answers as Open-Meteo gives them: hourly columns of weather, one object for each place.

Written from the published documentation, not from our own client. `..._previous_day1` is what was
forecast a day before; times are Unix seconds, radiation and rain are of the hour before.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.integrations.carbon.grid_server.answers import Reply, Request
from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import noise

HOUR = timedelta(hours=1)
DAY_BEFORE = "_previous_day1"
UNITS = {
    "wind_speed_10m": "m/s",
    "shortwave_radiation": "W/m²",
    "temperature_2m": "°C",
    "dew_point_2m": "°C",
    "precipitation": "mm",
}
MOST_DAYS = 16


def zone_of(request: Request) -> str:
    """Return the places that are asked about."""
    query = request.query
    return f"{query.get('latitude', '')};{query.get('longitude', '')}"


def answer(request: Request, suffering: AnswerFaults) -> Reply:
    """Answer one request."""
    query = request.query
    if request.path != ("v1", "forecast"):
        return Reply(status=404, body={"error": True, "reason": "Not Found"})
    names = [name for name in query.get("hourly", "").split(",") if name]
    for name in names:
        if name.removesuffix(DAY_BEFORE) not in UNITS:
            return _refused(f"Data corrupted at path ''. Cannot initialize variable {name}.")
    try:
        latitudes = [float(each) for each in query["latitude"].split(",")]
        longitudes = [float(each) for each in query["longitude"].split(",")]
        start, end = _span(request)
    except (KeyError, ValueError):
        return _refused(
            "Parameter 'latitude' and 'longitude' must have the same number of elements"
        )
    places = list(zip(latitudes, longitudes, strict=False))
    told = [_place(request, place, names, (start, end), suffering) for place in places]
    return Reply(body=told if len(told) > 1 else told[0])


def weather(name: str, latitude: float, at: datetime) -> float:
    """Return the forecast of a variable at a time, in its unit."""
    half = at.replace(hour=at.hour // 12 * 12)
    random = noise(f"{latitude:.2f}", name, half)
    sun = max(0.0, math.sin(math.pi * (at.hour - 6) / 12))
    return {
        "wind_speed_10m": 6.0 + 5.0 * random,
        "shortwave_radiation": 700.0 * sun * (0.8 + 0.2 * random),
        "temperature_2m": 12.0 + 6.0 * sun + 5.0 * random,
        "dew_point_2m": 6.0 + 4.0 * random,
        "precipitation": max(0.0, 2.0 * random),
    }[name]


def _refused(reason: str) -> Reply:
    return Reply(status=400, body={"error": True, "reason": reason})


def _span(request: Request) -> tuple[datetime, datetime]:
    query = request.query
    if "start_date" in query:
        start, last = (
            datetime.strptime(query[name], "%Y-%m-%d").replace(tzinfo=UTC)
            for name in ("start_date", "end_date")
        )
        return start, last + timedelta(days=1)
    days = min(MOST_DAYS, int(query.get("forecast_days", "7")))
    start = request.now.replace(hour=0, minute=0, second=0, microsecond=0)
    return start, start + timedelta(days=days)


def _place(
    request: Request,
    place: tuple[float, float],
    names: list[str],
    span: tuple[datetime, datetime],
    suffering: AnswerFaults,
) -> dict[str, Any]:
    latitude, longitude = place
    start, end = span
    times = [start + n * HOUR for n in range((end - start) // HOUR)]
    metres = request.query.get("wind_speed_unit") == "ms" and not suffering.has(Fault.WRONG_UNIT)
    units = {name: UNITS[name.removesuffix(DAY_BEFORE)] for name in names}
    if not metres:
        units = {name: "km/h" if unit == "m/s" else unit for name, unit in units.items()}
    away = 30.0 if suffering.has(Fault.WRONG_ZONE) else 0.02
    return {
        "latitude": latitude - math.copysign(away, latitude),
        "longitude": longitude,
        "generationtime_ms": 0.1,
        "utc_offset_seconds": 0,
        "timezone": "GMT",
        "elevation": 38.0,
        "hourly_units": {"time": "unixtime", **units},
        "hourly": {
            "time": [int(at.timestamp()) for at in times],
            **{name: [_value(name, latitude, at, suffering) for at in times] for name in names},
        },
    }


def _value(name: str, latitude: float, at: datetime, suffering: AnswerFaults) -> float | None:
    if suffering.hits(Fault.GAP, at) or suffering.hits(Fault.NULL, at):
        return None
    if suffering.hits(Fault.SPIKE, at):
        return 1e9
    return round(weather(name.removesuffix(DAY_BEFORE), latitude, at), 2)
