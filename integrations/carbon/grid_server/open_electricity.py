"""Answers as Open Electricity's API v4 gives them: energy and emissions by group of fuels.

Written from the published documentation, not from our own client. Questions are in the network's
own time without an offset, answers with it; an hour is named by its start. Invariant: tonnes over
megawatt-hours of all that generates make up the zone's direct intensity, to a kilogram.
"""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from wattmesh.integrations.carbon.grid_server.answers import Reply, Request
from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import HOUR, SimulatedGrid, noise

OFFSETS = {"NEM": timezone(timedelta(hours=10)), "WEM": timezone(timedelta(hours=8))}
LONGEST = timedelta(days=32)
FORM = "%Y-%m-%dT%H:%M:%S"
UNITS = {"energy": "MWh", "emissions": "t"}
COAL_G_PER_KWH = 950.0


def zone_of(request: Request) -> str:
    """Return the region or network that is asked about."""
    return request.query.get("network_region") or (request.path[-1] if request.path else "")


def answer(
    request: Request, grid: SimulatedGrid, suffering: AnswerFaults, keys: frozenset[str]
) -> Reply:
    """Answer one request."""
    key = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not key or (keys and key not in keys):
        return Reply(status=401, body={"detail": "Invalid API key"})
    network = request.path[-1]
    if request.path[:-1] != ("v4", "data", "network") or network not in OFFSETS:
        return Reply(status=404, body={"detail": "Not Found"})
    try:
        start, end = (
            datetime.strptime(request.query.get(name, ""), FORM).replace(tzinfo=OFFSETS[network])
            for name in ("date_start", "date_end")
        )
    except ValueError:
        detail = "Date start must be timezone naive and in network time"
        return Reply(status=400, body={"detail": detail})
    if end - start > LONGEST:
        detail = "Date range too large for hour interval. Maximum range is 32 days."
        return Reply(status=400, body={"detail": detail})
    blocks = [
        _block(metric, request, (start, end), grid, suffering)
        for metric in request.query.get("metrics", "").split(",")
        if metric in UNITS
    ]
    return Reply(
        body={
            "version": "4.5.16",
            "created_at": f"{request.now.astimezone(OFFSETS[network]).isoformat()}",
            "success": True,
            "data": [] if suffering.has(Fault.EMPTY) else blocks,
        }
    )


def generation(
    grid: SimulatedGrid, zone: str, hour: datetime
) -> dict[str, tuple[float | None, float | None]]:
    """Return megawatt-hours and tonnes of each group in an hour that begins at `hour`, UTC."""
    grams, total = grid.truth(zone, hour), 9_000.0
    coal = min(0.9, 0.8 * grams / COAL_G_PER_KWH)
    gas = min(1 - coal, 0.1)
    tonnes = total * grams / 1000
    burnt = total * coal * COAL_G_PER_KWH / 1000
    clean = total * (1 - coal - gas)
    return {
        "coal": (total * coal, burnt),
        "gas": (total * gas, tonnes - burnt),
        "wind": (0.6 * clean, 0.0),
        "solar": (0.4 * clean, 0.0),
        "battery_charging": (300.0, 0.0),
        "battery_discharging": (250.0, 0.0),
        "pumps": (100.0, 0.0),
    }


def _block(
    metric: str,
    request: Request,
    span: tuple[datetime, datetime],
    grid: SimulatedGrid,
    suffering: AnswerFaults,
) -> dict[str, Any]:
    zone, network = zone_of(request), request.path[-1]
    offset = OFFSETS[network]
    told = "QLD9" if suffering.has(Fault.WRONG_ZONE) else zone
    rows: dict[str, list[tuple[str, float | None]]] = {}
    hour = span[0].astimezone(UTC)
    while hour < span[1] and zone in grid.zones:
        if hour + HOUR <= request.now and not suffering.hits(Fault.GAP, hour):
            for group, both in _hour(grid, zone, hour, request.now, suffering).items():
                value = both[0] if metric == "energy" else both[1]
                rows.setdefault(group, []).append((hour.astimezone(offset).isoformat(), value))
        hour += HOUR
    region = {"region": told} if request.query.get("network_region") else {}
    wrong_unit = suffering.has(Fault.WRONG_UNIT) and metric == "emissions"
    return {
        "network_code": network if region or told == zone else told,
        "metric": metric,
        "unit": "kg" if wrong_unit else UNITS[metric],
        "interval": request.query.get("interval", "5m"),
        "date_start": span[0].isoformat(),
        "date_end": span[1].isoformat(),
        "groupings": ["fueltech_group"],
        "network_timezone_offset": f"+{int(offset.utcoffset(None).total_seconds()) // 3600:02d}:00",
        "results": [
            {
                "name": f"{metric}_{group}",
                "columns": {**region, "fueltech_group": group},
                "data": data,
            }
            for group, data in rows.items()
        ],
    }


def _hour(
    grid: SimulatedGrid, zone: str, hour: datetime, now: datetime, suffering: AnswerFaults
) -> dict[str, tuple[float | None, float | None]]:
    found = generation(grid, zone, hour)
    energy, tonnes = found["coal"]
    assert energy is not None
    assert tonnes is not None
    if now < hour + HOUR + grid.ripening.final_after:
        found["coal"] = (
            energy,
            tonnes * (1 + grid.ripening.first_error * noise(zone, "first", hour)),
        )
    if suffering.hits(Fault.REVISED, hour):
        found["coal"] = (energy, 1.2 * tonnes)
    if suffering.hits(Fault.ZERO, hour):
        found = dict.fromkeys(found, (0.0, 0.0))
    if suffering.has(Fault.NEW_FUEL):
        found["fusion"] = (900.0, 0.0)
    if suffering.has(Fault.MISSING_FUEL):
        del found["gas"]
    if suffering.hits(Fault.NULL, hour):
        found["coal"] = (energy, None)
    return found
