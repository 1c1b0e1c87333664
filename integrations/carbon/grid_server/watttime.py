"""Answers as WattTime v3 gives them: login, marginal (co2_moer) and average (co2_aoer) signals.

Written from the published documentation, not from our own client. Invariant: times carry their
offset, values are pounds of CO2 per megawatt-hour in steps of a tenth, and a token lives for thirty
minutes of the server's clock.
"""

import base64
import binascii
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.grid_server.answers import Reply, Request, floor, moment
from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import HOUR, Measure, SimulatedGrid

G_PER_POUND = 453.59237
TOKEN_LIVES = timedelta(minutes=30)
STEP = {"co2_moer": HOUR / 12, "co2_aoer": HOUR}
LONGEST_HISTORY = timedelta(days=32)
LONGEST_OLD_FORECASTS = timedelta(days=1)
MODEL_DATE, NEXT_MODEL_DATE = "2026-03-01", "2026-10-01"
NGINX_403 = (
    "<html>\r\n<head><title>403 Forbidden</title></head>\r\n<body>\r\n"
    "<center><h1>403 Forbidden</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>"
)
SCOPE = {
    "error": "Invalid query parameters",
    "message": "Invalid scope. You do not have sufficient access to this resource. "
    "Please contact your administrator to get access.",
}


@dataclass(slots=True)
class Tokens:
    """Issued tokens, and their account; shared by the server's threads.

    Attributes:
        accounts: password by user; empty: every user and password will do.
    """

    accounts: dict[str, str] = field(default_factory=dict)
    _ends: dict[str, datetime] = field(default_factory=dict)
    _given: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def login(self, request: Request) -> Reply:
        """Return a token for user and password, or a proxy's error page."""
        user, password = _basic(request.headers.get("authorization", ""))
        good = self.accounts.get(user) == password if self.accounts else bool(user and password)
        if not good:
            return Reply(status=403, body=NGINX_403, content_type="text/html")
        with self._lock:
            self._given += 1
            token = f"eyJhbGciOiJub25lIn0.{self._given:08d}.invented"
            self._ends[token] = request.now + TOKEN_LIVES
        return Reply(body={"token": token})

    def allows(self, request: Request) -> bool:
        """Return whether the request has a valid token."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        with self._lock:
            return token in self._ends and request.now < self._ends[token]

    def void(self) -> None:
        """Expire every token issued so far."""
        with self._lock:
            self._ends.clear()


def zone_of(request: Request) -> str:
    """Return the region of a request; "" for none."""
    return request.query.get("region", "")


def answer(request: Request, grid: SimulatedGrid, suffering: AnswerFaults, tokens: Tokens) -> Reply:
    """Answer one request."""
    if request.path == ("login",):
        return tokens.login(request)
    if not tokens.allows(request):
        return Reply(status=401, body={"error": "Invalid token", "message": "Token is expired"})
    try:
        return _allowed(request, grid, suffering)
    except (InputInvalid, KeyError, ValueError) as error:
        problem = f"missing parameter {error}" if isinstance(error, KeyError) else str(error)
        return Reply(status=400, body={"error": "Invalid query parameters", "message": problem})


def _allowed(request: Request, grid: SimulatedGrid, suffering: AnswerFaults) -> Reply:
    """Answer a request that carries a token.

    Raises:
        KeyError, ValueError, InputInvalid: a parameter is missing or out of range.
    """
    if request.path == ("v3", "my-access"):
        return Reply(body=_access(grid))
    if request.path == ("v3", "region-from-loc"):
        return _region(request, grid)
    region, signal = zone_of(request), request.query.get("signal_type", "")
    if region not in grid.zones or signal not in STEP:
        return Reply(status=403, body=SCOPE)
    if suffering.has(Fault.WRONG_ZONE):
        region = next(each for each in grid.zones if each != region)
    return _Series(request, grid, suffering, region, signal).reply(request.path)


class _Series:
    """One signal of one region, as one request sees it."""

    def __init__(
        self,
        request: Request,
        grid: SimulatedGrid,
        suffering: AnswerFaults,
        region: str,
        signal: str,
    ) -> None:
        self.query, self.now, self.grid = request.query, request.now, grid
        self.suffering, self.region, self.signal = suffering, region, signal
        self.step = STEP[signal]
        self.measure = Measure.MARGINAL if signal == "co2_moer" else Measure.DIRECT

    def reply(self, what: tuple[str, ...]) -> Reply:
        """Answer an endpoint.

        Raises:
            KeyError, ValueError, InputInvalid: a parameter is missing or out of range.
        """
        if what == ("v3", "historical"):
            return self._body(self._historical(), model={"type": "binned_regression"})
        if what == ("v3", "signal-index"):
            row = {"point_time": _text(floor(self.now, self.step)), "value": self._percentile()}
            return self._body([row], units="percentile")
        if self.signal != "co2_moer":
            return Reply(status=403, body=SCOPE)
        if what == ("v3", "forecast"):
            issued = floor(self.now, self.step)
            return self._body(self._issued(issued), generated_at=_text(issued))
        if what == ("v3", "forecast", "historical"):
            return self._body(self._old_forecasts())
        return Reply(status=404, body={"error": "Not Found"})

    def _historical(self) -> list[dict[str, Any]]:
        """Give the past, both ends inclusive."""
        start, end = moment(self.query["start"]), moment(self.query["end"])
        if not start <= end <= start + LONGEST_HISTORY:
            raise InputInvalid("the range may span 32 days at most")
        at, rows = floor(start + self.step - timedelta(microseconds=1), self.step), []
        while at <= end and at + self.step <= self.now:
            if not self.suffering.hits(Fault.GAP, at):
                known = self.grid.reported(self.region, at, self.now, self.step, self.measure)
                rows.append(
                    {
                        "point_time": _text(at),
                        "value": self._value(at, known.g_per_kwh),
                        "last_updated": _text(known.updated_at),
                        "imputed_data_used": self.suffering.has(Fault.IMPUTED),
                    }
                )
            at += self.step
        return rows

    def _issued(self, issued: datetime) -> list[dict[str, Any]]:
        """Give the forecast of a moment; its first point is the value of now."""
        horizon_h = int(self.query.get("horizon_hours", "24"))
        if not 0 <= horizon_h <= 72:
            raise InputInvalid("horizon_hours must be between 0 and 72")
        known = self.grid.reported(self.region, issued, self.now, self.step, self.measure)
        rows = [{"point_time": _text(issued), "value": self._value(issued, known.g_per_kwh)}]
        for i in range(1, horizon_h * (HOUR // self.step)):
            at = issued + i * self.step
            value = self.grid.expected(self.region, at, issued, self.step, self.measure)
            rows.append({"point_time": _text(at), "value": _pounds(value)})
        return rows

    def _old_forecasts(self) -> list[dict[str, Any]]:
        """Give the forecasts issued in a span, one an hour."""
        start, end = moment(self.query["start"]), moment(self.query["end"])
        if not start <= end <= start + LONGEST_OLD_FORECASTS:
            raise InputInvalid("the range may span 1 day at most")
        at, found = floor(start, self.step), []
        while at <= min(end, self.now):
            found.append({"generated_at": _text(at), "forecast": self._issued(at)})
            at += HOUR
        return found

    def _body(self, data: list[dict[str, Any]], **meta: Any) -> Reply:
        changed = self.suffering.has(Fault.MODEL_CHANGED)
        percentile = self.suffering.has(Fault.PERCENTILE)
        model = {"date": NEXT_MODEL_DATE if changed else MODEL_DATE}
        model |= meta.pop("model", {})
        warning = {"type": "EXAMPLE_WARNING", "message": "This is just an example"}
        return Reply(
            body={
                "data": [] if self.suffering.has(Fault.EMPTY) else data,
                "meta": {
                    "data_point_period_seconds": int(self.step.total_seconds()),
                    "region": self.region,
                    "warnings": [warning] if self.suffering.has(Fault.WARNINGS) else [],
                    "signal_type": self.signal,
                    "model": model,
                    "units": "percentile" if percentile else "lbs_co2_per_mwh",
                    "generated_at_period_seconds": 300,
                }
                | meta,
            }
        )

    def _value(self, at: datetime, g_per_kwh: float) -> float | None:
        """Give one observed value in pounds, or what is wrong with it."""
        if self.suffering.hits(Fault.NULL, at):
            return None
        if self.suffering.hits(Fault.ZERO, at):
            return 0.0
        return _pounds(g_per_kwh * (1.2 if self.suffering.hits(Fault.REVISED, at) else 1.0))

    def _percentile(self) -> float:
        """Return the percentile of the present value in the last four weeks, 0 to 100."""
        at = floor(self.now, self.step)
        past = [self._true_g_per_kwh(at - i * 6 * HOUR) for i in range(112)]
        return round(100.0 * sum(value < past[0] for value in past) / len(past), 1)

    def _true_g_per_kwh(self, at: datetime) -> float:
        return self.grid.truth(self.region, at, self.step, self.measure)


def _access(grid: SimulatedGrid) -> dict[str, Any]:
    def region(name: str, endpoints: tuple[str, ...]) -> dict[str, Any]:
        model = {"model": MODEL_DATE, "data_start": "2021-01-01", "train_start": "2021-01-01"}
        models = [model | {"train_end": "2025-12-31"}]
        return {
            "region": name,
            "region_full_name": name,
            "parent": "",
            "data_point_period_seconds": 300,
            "endpoints": [{"endpoint": each, "models": models} for each in endpoints],
        }

    offers = {
        "co2_moer": ("v3/forecast", "v3/forecast/historical", "v3/historical", "v3/signal-index"),
        "co2_aoer": ("v3/historical",),
    }
    return {
        "signal_types": [
            {"signal_type": signal, "regions": [region(zone, ends) for zone in grid.zones]}
            for signal, ends in offers.items()
        ]
    }


def _region(request: Request, grid: SimulatedGrid) -> Reply:
    """Say which region a place lies in: California, or nowhere."""
    latitude, longitude = request.query["latitude"], request.query["longitude"]
    signal = request.query["signal_type"]
    inside = 36.0 <= float(latitude) <= 42.0 and -125.0 <= float(longitude) <= -119.0
    if not inside or "CAISO_NORTH" not in grid.zones:
        problem = "No coverage available for these coordinates and signal_type"
        place = {"latitude": latitude, "longitude": longitude, "signal_type": signal}
        return Reply(status=404, body={"error": problem} | place)
    name = "California ISO Northern"
    return Reply(body={"region": "CAISO_NORTH", "region_full_name": name, "signal_type": signal})


def _basic(header: str) -> tuple[str, str]:
    """Read user and password of HTTP Basic; empty when there are none."""
    try:
        text = base64.b64decode(header.removeprefix("Basic "), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    user, _, password = text.partition(":")
    return user, password


def _pounds(g_per_kwh: float) -> float:
    """Convert to pounds per megawatt-hour, rounded to tenths as WattTime does."""
    return round(g_per_kwh * 1000 / G_PER_POUND, 1)


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}+00:00"
