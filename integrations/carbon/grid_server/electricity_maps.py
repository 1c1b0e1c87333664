"""Answers as Electricity Maps gives them, v3 and v4: average intensity, lifecycle or direct.

Written from the published documentation and from answers that other clients recorded, not from our
own client. Invariant: `datetime` is the start of an interval; the newest one is always estimated.
"""

from datetime import datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.grid_server.answers import Reply, Request, floor, moment
from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import HOUR, Measure, SimulatedGrid

STEPS = {"5_minutes": HOUR / 12, "15_minutes": HOUR / 4, "hourly": HOUR}
LONGEST = {"5_minutes": 10, "15_minutes": 10, "hourly": 10, "daily": 100}
"""Days that one past-range request may span."""

HORIZONS = (6, 24, 48, 72)
SANDBOX_KEY = "sandbox"
"""Keys that begin so are sandbox keys."""

HINT = (
    "This data is for testing only, it was randomised because the key is in SANDBOX MODE. "
    "Get a production key to see real values."
)


def zone_of(request: Request) -> str:
    """Give the zone a request asks for; "" when it names none."""
    return request.query.get("zone", request.query.get("zoneKey", ""))


def answer(
    request: Request, grid: SimulatedGrid, suffering: AnswerFaults, keys: frozenset[str]
) -> Reply:
    """Answer one request. `keys`: the keys that are known; empty: every key is."""
    key = request.headers.get("auth-token", "")
    version, *what = request.path or ("",)
    if version in ("v3", "v4") and what == ["zones"]:
        return Reply(body=_zones(grid, with_access=bool(key)))
    if not key or (keys and key not in keys):
        return Reply(status=401, body={"error": "Invalid auth-token"})
    if version not in ("v3", "v4") or what[:1] != ["carbon-intensity"] or len(what) != 2:
        return _error(404, "Not found")
    try:
        zone = _answered_zone(request, grid, suffering)
        body = _Series(request, grid, suffering, zone).body(what[1])
    except InputInvalid as error:
        return _error(400, str(error))
    if body is None:
        return _error(404, "No recent data available for this zone")
    if suffering.has(Fault.SANDBOX) or key.startswith(SANDBOX_KEY):
        _make_sandbox(body)
    return Reply(body=body)


def _answered_zone(request: Request, grid: SimulatedGrid, suffering: AnswerFaults) -> str:
    """Say for which zone it answers: the one asked for, or where the caller seems to be.

    Raises:
        InputInvalid: there is no such zone, and the caller does not want to be looked up.
    """
    zone = zone_of(request)
    if suffering.has(Fault.WRONG_ZONE):
        return next(each for each in grid.zones if each != zone)
    if zone in grid.zones:
        return zone
    # The real one answers for the caller's own address unless it is told not to.
    if request.query.get("disableCallerLookup") == "true":
        raise InputInvalid(f"Zone {zone!r} does not exist.")
    return next(iter(grid.zones))


class _Series:
    """The rows of one zone, as one request sees them."""

    def __init__(
        self, request: Request, grid: SimulatedGrid, suffering: AnswerFaults, zone: str
    ) -> None:
        """Read the parameters that all endpoints share.

        Raises:
            InputInvalid: a parameter has a value that is not offered.
        """
        self.query, self.now, self.grid = request.query, request.now, grid
        self.suffering, self.zone = suffering, zone
        self.factor = self.query.get("emissionFactorType", "lifecycle")
        self.granularity = self.query.get("temporalGranularity", "hourly")
        if self.factor not in ("lifecycle", "direct"):
            raise InputInvalid('"emissionFactorType" must be one of [lifecycle, direct]')
        if self.granularity not in STEPS:
            raise InputInvalid(f'"temporalGranularity" must be one of {sorted(STEPS)}')
        self.step = STEPS[self.granularity]
        self.measured_only = self.query.get("disableEstimations") == "true"

    def body(self, what: str) -> dict[str, Any] | None:
        """Give the body of an endpoint; None: there is nothing to tell.

        Raises:
            InputInvalid: a parameter is missing or out of range, or there is no such endpoint.
        """
        running = floor(self.now, self.step)
        if what == "latest":
            rows = self._rows(running - 6 * HOUR, running + self.step)
            return rows[-1] if rows and not self.suffering.has(Fault.EMPTY) else None
        if what == "history":
            rows = self._rows(running - 23 * HOUR, running + self.step)
            return self._keyed("history", rows)
        if what in ("past-range", "past"):
            return self._past(what)
        if what == "forecast":
            return self._forecast(running)
        raise InputInvalid(f"no endpoint {what!r}")

    def _past(self, what: str) -> dict[str, Any] | None:
        """Give a span that the caller names, or one interval."""
        if what == "past":
            at = floor(self._time("datetime"), self.step)
            return next(iter(self._rows(at, at + self.step)), None)
        start, end = self._time("start"), self._time("end")
        if not start < end:
            raise InputInvalid('"start" must be before "end"')
        days = LONGEST[self.granularity]
        if end - start > timedelta(days=days):
            raise InputInvalid(f"the range may span {days} days at most")
        return self._keyed("data", self._rows(floor(start, self.step), min(end, self.now)))

    def _forecast(self, running: datetime) -> dict[str, Any]:
        """Give the newest forecast, issued within this hour."""
        horizon = int(self.query.get("horizonHours", "24"))
        if horizon not in HORIZONS:
            raise InputInvalid(f'"horizonHours" must be one of {list(HORIZONS)}')
        issued = self.now.replace(minute=0, second=0, microsecond=0)
        count = 0 if self.suffering.has(Fault.EMPTY) else horizon * (HOUR // self.step)
        points = [
            {
                "carbonIntensity": int(
                    self.grid.expected(self.zone, at, issued, self.step, self._measure)
                ),
                "datetime": _text(at),
            }
            for at in (running + i * self.step for i in range(count))
        ]
        return {
            "zone": self.zone,
            "forecast": points,
            "updatedAt": _text(issued),
            "temporalGranularity": self.granularity,
        }

    @property
    def _measure(self) -> Measure:
        return Measure(self.factor)

    def _time(self, name: str) -> datetime:
        if name not in self.query:
            raise InputInvalid(f'Missing argument: "{name}"')
        return moment(self.query[name])

    def _keyed(self, key: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        if self.suffering.has(Fault.EMPTY):
            rows = []
        return {"zone": self.zone, key: rows, "temporalGranularity": self.granularity}

    def _rows(self, start: datetime, end: datetime) -> list[dict[str, Any]]:
        """Give the rows of intervals that begin in [start, end) and have begun."""
        starts = (start + i * self.step for i in range(max(0, -((start - end) // self.step))))
        rows = [
            self._row(at)
            for at in starts
            if at <= self.now and not self.suffering.hits(Fault.GAP, at)
        ]
        return [row for row in rows if not (self.measured_only and row.get("isEstimated"))]

    def _row(self, at: datetime) -> dict[str, Any]:
        known = self.grid.reported(self.zone, at, self.now, self.step, self._measure)
        value = known.g_per_kwh
        if self.suffering.hits(Fault.REVISED, at):
            value = 1.2 * known.g_per_kwh
        if self.suffering.hits(Fault.ZERO, at):
            value = 0
        updated = max(at, known.updated_at)
        if self.suffering.has(Fault.UPDATED_EARLY):
            updated = at - timedelta(minutes=75)
        row: dict[str, Any] = {
            "zone": self.zone,
            "carbonIntensity": None if self.suffering.hits(Fault.NULL, at) else round(value),
            "datetime": _text(at),
            "updatedAt": _text(updated),
            "emissionFactorType": self.factor,
            "isEstimated": known.estimated,
        }
        if not self.suffering.has(Fault.MISSING_OPTIONALS):
            row |= {
                "createdAt": _text(at - timedelta(days=3)),
                "estimationMethod": "TIME_SLICER_AVERAGE" if known.estimated else None,
                "temporalGranularity": self.granularity,
                "flowTraced": True,
            }
        return row


def _zones(grid: SimulatedGrid, with_access: bool) -> dict[str, Any]:
    """Give all zones; with a key also what it may ask for there."""
    access = [
        f"carbon-intensity/{what}" for what in ("latest", "history", "past-range", "forecast")
    ]
    return {
        zone: {"zoneName": zone, "countryName": zone, "displayName": zone}
        | ({"access": access} if with_access else {})
        for zone in grid.zones
    }


def _make_sandbox(body: dict[str, Any]) -> None:
    """Make an answer one for a sandbox key: other values, and the marks that give it away."""
    body["_disclaimer"] = HINT
    rows = next((body[key] for key in ("history", "data", "forecast") if key in body), [body])
    for row in rows:
        row["carbonIntensity"] = (row["carbonIntensity"] or 0) * 7 % 613 + 1
        row["estimationMethod"] = "SANDBOX_MODE_DATA"


def _text(at: datetime) -> str:
    """Write a time as Electricity Maps does: milliseconds and Z."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _error(status: int, message: str) -> Reply:
    return Reply(status=status, body={"status": "error", "message": message})
