"""Answers of a made-up service: plain JSON, for the source `http_json`.

`/intensity/{zone}?hours=48` gives `{"zone", "unit", "rows": [{"start", "end", "value",
"forecast"}]}`, `/now/{zone}` one such row. Invariant: an interval that is not over has `value`
null.
"""

import math
from datetime import datetime, timedelta
from typing import Any

from wattmesh.integrations.carbon.grid_server.answers import Reply, Request
from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import HOUR, SimulatedGrid

AHEAD = timedelta(hours=48)
MOST_HOURS = 24 * 31


def zone_of(request: Request) -> str:
    """Return the zone of a request; "" for none."""
    return request.path[1] if len(request.path) > 1 else ""


def answer(
    request: Request, grid: SimulatedGrid, suffering: AnswerFaults, keys: frozenset[str]
) -> Reply:
    """Answer one request. With `keys`, one must come as `Authorization: Bearer`."""
    zone = zone_of(request)
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if keys and token not in keys:
        return Reply(status=401, body={"message": "unknown token"})
    if len(request.path) != 2 or zone not in grid.zones:
        return Reply(status=404, body={"message": f"no zone {zone!r}"})
    running = request.now.replace(minute=0, second=0, microsecond=0)
    if request.path[0] == "now":
        return Reply(body={"zone": zone} | _row(zone, running, request.now, grid, suffering))
    hours = _hours(request.query.get("hours", ""))
    starts = [running + i * HOUR for i in range(-hours, AHEAD // HOUR)]
    rows = [
        _row(zone, at, request.now, grid, suffering)
        for at in starts
        if not suffering.has(Fault.EMPTY) and not suffering.hits(Fault.GAP, at)
    ]
    return Reply(body={"zone": zone, "unit": "gCO2/kWh", "rows": rows})


def _hours(text: str) -> int:
    """Read how far back to go; two days when it is not said."""
    try:
        return max(0, min(MOST_HOURS, math.ceil(float(text))))
    except (ValueError, OverflowError):
        return 48


def _row(
    zone: str, at: datetime, now: datetime, grid: SimulatedGrid, suffering: AnswerFaults
) -> dict[str, Any]:
    value: float | None = None
    if at + HOUR <= now and not suffering.hits(Fault.NULL, at):
        known = grid.reported(zone, at, max(now, at + HOUR + grid.ripening.measured_after))
        value = known.g_per_kwh * (1.2 if suffering.hits(Fault.REVISED, at) else 1.0)
        value = 0.0 if suffering.hits(Fault.ZERO, at) else value
    return {
        "start": f"{at:%Y-%m-%dT%H:%M:%SZ}",
        "end": f"{at + HOUR:%Y-%m-%dT%H:%M:%SZ}",
        "value": value,
        "forecast": grid.expected(zone, at, min(now, at)),
    }
