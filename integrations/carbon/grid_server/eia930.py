"""Answers as EIA's open data API gives its hourly grid monitor: megawatt-hours by fuel.

Written from the published documentation, not from our own client. Invariant: `period` is the hour
at whose end the energy had flowed, UTC; values are strings; no row carries an intensity.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.grid_server.answers import Reply, Request
from wattmesh.integrations.carbon.grid_server.exogenous import eia930_demand
from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import HOUR, SimulatedGrid, noise

NAMES = {
    "COL": "Coal",
    "NG": "Natural Gas",
    "NUC": "Nuclear",
    "OIL": "Petroleum",
    "OTH": "Other",
    "SUN": "Solar",
    "WAT": "Hydro",
    "WND": "Wind",
    "XXX": "Unheard of",
}
COAL_G_PER_KWH, GAS_G_PER_KWH = 760, 370
MOST_ROWS = 5000
PERIOD = "%Y-%m-%dT%H"
PATH = ("v2", "electricity", "rto", "fuel-type-data", "data")


def zone_of(request: Request) -> str:
    """Return the balancing authority of a request; "" for none."""
    return _facets(request, "respondent")[0] if _facets(request, "respondent") else ""


def answer(
    request: Request,
    grid: SimulatedGrid,
    suffering: AnswerFaults,
    keys: frozenset[str],
    lag: timedelta,
) -> Reply:
    """Answer one request. `lag`: how long after its end an hour is published."""
    key = request.query.get("api_key", "")
    if not key or (keys and key not in keys):
        code = "API_KEY_INVALID" if key else "API_KEY_MISSING"
        message = "An invalid api_key was supplied." if key else "No api_key was supplied."
        return Reply(status=403, body={"error": {"code": code, "message": message}})
    if request.path not in (PATH, eia930_demand.PATH):
        return _error(404, "Not found")
    try:
        rows = _rows(request, grid, suffering, lag)
        offset, length = _number(request, "offset", 0), _number(request, "length", MOST_ROWS)
    except InputInvalid as error:
        return _error(400, str(error))
    if request.query.get("sort[0][direction]", "asc") == "desc":
        rows.reverse()
    page = rows[offset : offset + min(length, MOST_ROWS)]
    return Reply(
        body={
            "response": {
                "total": str(len(rows)),
                "dateFormat": 'YYYY-MM-DD"T"HH24',
                "frequency": "hourly",
                "data": page,
            },
            "request": {"command": "/" + "/".join(request.path) + "/", "params": {}},
            "apiVersion": "2.1.10",
        }
    )


def mix_mwh(grid: SimulatedGrid, zone: str, start: datetime) -> dict[str, int]:
    """Return each fuel's final generation in the hour that begins at `start`.

    Coal and gas at 760 and 370 g/kWh make up the direct intensity of the zone, to a megawatt-hour.
    """
    total = eia930_demand.demand_mwh(zone, start)
    grams = grid.truth(zone, start)
    coal = min(0.85, 0.25 * grams / COAL_G_PER_KWH)
    gas = min(0.98 - coal, (grams - coal * COAL_G_PER_KWH) / GAS_G_PER_KWH)
    clean = 1 - coal - gas
    shares = {"COL": coal, "NG": gas, "NUC": 0.3 * clean, "WAT": 0.1 * clean}
    sunny = 0.35 if 14 <= start.hour <= 23 else 0.0
    shares |= {"SUN": sunny * clean, "WND": (0.6 - sunny) * clean, "OIL": 0.0, "OTH": 0.0}
    return {fuel: round(share * total) for fuel, share in shares.items()}


def _rows(
    request: Request, grid: SimulatedGrid, suffering: AnswerFaults, lag: timedelta
) -> list[dict[str, Any]]:
    """Return the requested rows, oldest first; without a start those of the last ten days."""
    if suffering.has(Fault.EMPTY):
        return []
    demand = request.path == eia930_demand.PATH
    told_until = request.now + eia930_demand.AHEAD if demand else request.now - lag
    newest = told_until.replace(minute=0, second=0, microsecond=0)
    last = min(newest, _period(request, "end", newest))
    period = _period(request, "start", newest - timedelta(days=10))
    facet = "type" if demand else "fueltype"
    wanted = _facets(request, facet)
    rows = []
    while period <= last:
        start = period - HOUR
        for zone in _facets(request, "respondent") or list(grid.zones):
            if zone not in grid.zones or suffering.hits(Fault.GAP, start):
                continue
            if demand:
                rows += eia930_demand.hour_rows(zone, start, request.now, suffering, lag)
            else:
                rows += _hour(zone, start, request.now, grid, suffering)
        period += HOUR
    return [row for row in rows if not wanted or row[facet] in wanted]


def _hour(
    zone: str, start: datetime, now: datetime, grid: SimulatedGrid, suffering: AnswerFaults
) -> list[dict[str, Any]]:
    mix = mix_mwh(grid, zone, start)
    if now < start + HOUR + grid.ripening.final_after:
        mix["COL"] = round(
            mix["COL"] * (1 + grid.ripening.first_error * noise(zone, "first", start))
        )
    if suffering.hits(Fault.REVISED, start):
        mix = {
            fuel: round(mwh * (1.2 if fuel in ("COL", "NG") else 1)) for fuel, mwh in mix.items()
        }
    if suffering.hits(Fault.ZERO, start):
        mix = dict.fromkeys(mix, 0)
    if suffering.has(Fault.NEW_FUEL):
        mix["XXX"] = 900
    if suffering.has(Fault.MISSING_FUEL):
        del mix["NG"]
    null = suffering.hits(Fault.NULL, start)
    as_number = suffering.has(Fault.NUMBERS)
    if suffering.hits(Fault.SPIKE, start):
        mix["COL"] = eia930_demand.SPIKE
    respondent = "ELSE" if suffering.has(Fault.WRONG_ZONE) else zone
    unit = "gigawatthours" if suffering.has(Fault.WRONG_UNIT) else "megawatthours"
    return [
        {
            "period": f"{start + HOUR:{PERIOD}}",
            "respondent": respondent,
            "respondent-name": f"{respondent} (invented)",
            "fueltype": fuel,
            "type-name": NAMES[fuel],
            "value": None if null and fuel == "NG" else mwh if as_number else str(mwh),
            "value-units": unit,
        }
        for fuel, mwh in sorted(mix.items())
    ]


def _facets(request: Request, name: str) -> list[str]:
    """Give the values of a facet: `facets[respondent][]`, `facets[respondent][0]`..."""
    form = re.compile(rf"facets\[{name}\]\[\d*\]")
    return [
        value
        for key, text in request.query.items()
        if form.fullmatch(key)
        for value in text.split(",")
    ]


def _period(request: Request, name: str, default: datetime) -> datetime:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        return datetime.strptime(text[:13], PERIOD).replace(tzinfo=UTC)
    except ValueError as error:
        raise InputInvalid(f"Invalid {name} {text!r}: the form is YYYY-MM-DDTHH") from error


def _number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isdigit():
        raise InputInvalid(f"Invalid {name} {text!r}")
    return int(text)


def _error(status: int, message: str) -> Reply:
    return Reply(status=status, body={"error": message, "code": status})
