"""Electricity Maps, API v4 (v3 by `api_version`): average intensity of some 350 zones, by key.

Consumption-based and flow-traced; an interval is labelled by its start. Hours are estimated first
and measured some hours later, so polls ask for recent ones again. Keys of the free plan are for
non-commercial use and one zone, without forecast, with only the last 24 hours.

Invariant: every request names the zone and disables the lookup by the caller's address; an endpoint
that the plan lacks is tried once a day, not at every poll. A poll (newest, past, forecast) takes
three requests; at the cadence of 900 s even an hour in which all fail and are retried stays below a
free key's limit of 50.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid, NoData, NotEntitled, SourceRefused, UnknownZone
from wattmesh.integrations.carbon.electricity_maps_answers import (
    STEPS,
    ZoneQuery,
    forecast,
    observed,
    verdict,
)
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.http import BehindBreaker, JsonHttp
from wattmesh.integrations.carbon.reading.rows import (
    ORIGIN,
    DecodedRows,
    batch,
    floor,
    joined,
    stamp,
)
from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, Series, Signal

BASE_URL = "https://api.electricitymaps.com"
VERSIONS = ("v4", "v3")
FACTORS = ("lifecycle", "direct")

LONGEST = {
    "hourly": timedelta(days=10),
    "15_minutes": timedelta(days=2),
    "5_minutes": timedelta(days=1),
}
"""Longest span of one past-range request. Ten days are documented for hours; for the finer ones,
for which nothing is documented, other clients are known to get 200 to 300 values.
"""

LAST_DAY = timedelta(hours=24)
"""Span of the endpoint `history`."""

HORIZONS_H = (6, 24, 48, 72)
"""Forecast lengths that the API accepts."""

DENIED_FOR = timedelta(days=1)
"""How long an endpoint that the plan lacks is not tried again."""

RANGE, HISTORY, LATEST, FORECAST = "past-range", "history", "latest", "forecast"


class ElectricityMaps(BehindBreaker):
    """One zone's average intensity (`Provider`)."""

    def __init__(
        self,
        *,
        zone: str,
        key: str,
        factor: str = "lifecycle",
        granularity: str = "hourly",
        api_version: str = "v4",
        base_url: str = BASE_URL,
        http: JsonHttp | None = None,
    ) -> None:
        """Set the identity of the series, and the key.

        Args:
            zone: Electricity Maps' name of it: `DE`, `US-CAL-CISO`.
            key: the API key; never shown.
            factor: lifecycle or direct emission factors.
            granularity: hourly, 15_minutes or 5_minutes; the finer ones not in every plan.
            api_version: v4, or v3 while it is served.
            base_url: a mirror or a test server, with or without the version at its end.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: a choice that the API does not have; the message lists them.
        """
        choices = {
            "factor": (factor, FACTORS),
            "granularity": (granularity, tuple(STEPS)),
            "api_version": (api_version, VERSIONS),
        }
        for name, (chosen, allowed) in choices.items():
            if chosen not in allowed:
                raise InputInvalid(
                    f"carbon: {name} {chosen!r} is not offered by electricity_maps; there are "
                    f"{', '.join(allowed)}"
                )
        if not zone or ":" in zone:
            raise InputInvalid(f"carbon: {zone!r} is not a zone of electricity_maps, like 'DE'")
        self._asked = ZoneQuery(zone=zone, factor=factor, granularity=granularity)
        self._credentials = Credentials.header("auth-token", key)
        self._version = api_version
        self._http = http or JsonHttp(base_url)
        self._prefix = "" if self._http.base_url.endswith(f"/{api_version}") else f"/{api_version}"
        self._denied: dict[str, datetime] = {}

    @property
    def signal(self) -> Signal:
        """The identity of the series.

        CO2eq for both factor types: the API's unit is gCO2eq/kWh throughout, and the default
        direct factors are IPCC's of direct emissions in gCO2eq/kWh (`emissionFactors` in
        config/defaults.yaml of electricitymaps-contrib, "Default emission factors" in its wiki).
        """
        asked = self._asked
        return Signal(
            provider="electricity_maps", zone=asked.zone, factor=asked.factor, gas="CO2eq"
        )

    @property
    def series(self) -> Series:
        """Intervals of the granularity; a new hour appears within minutes, estimated at first."""
        step_s = self._asked.step.total_seconds()
        return Series(
            interval_s=step_s,
            origin=ORIGIN,
            cadence_s=min(900.0, step_s),
            lag_s=3600.0,
            forecast_s=HORIZONS_H[-1] * 3600.0,
        )

    def capabilities(self, now: datetime) -> Capabilities:
        """Query which endpoints this key may use in this zone.

        Raises:
            NotEntitled: the key does not cover the zone. UnknownZone: there is no such zone.
        """
        zones = self._get("/zones", {})
        mine = zones.get(self._asked.zone) if isinstance(zones, dict) else None
        if not isinstance(mine, dict):
            raise self._uncovered(zones)
        access = [str(each) for each in mine.get("access") or ()]
        may = {name: _may(access, name) for name in (LATEST, HISTORY, RANGE, FORECAST)}
        until = now + DENIED_FOR
        self._denied = {name: until for name, allowed in may.items() if not allowed}
        lacking = [name for name in (RANGE, FORECAST) if not may[name]]
        return Capabilities(
            latest=may[LATEST],
            history=may[HISTORY] or may[RANGE],
            forecast=may[FORECAST],
            history_since=None if may[RANGE] else floor(now - LAST_DAY, self._asked.step),
            detail=f"This key has no {' and no '.join(lacking)}." if lacking else "",
        )

    def latest(self, now: datetime) -> CarbonBatch:
        """Fetch the newest interval, usually the current one."""
        return self._batch(observed(self._signal(LATEST), self._asked, now), now)

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the intervals that begin in [start, end), in as few requests as allowed.

        A key without past-range gets only those in the last 24 hours; `refused` says so.
        """
        first, last = floor(start, self._asked.step), min(end, now)
        if first >= last:
            return CarbonBatch(points=())
        reading = self._ranges(first, last, now)
        if reading is None:
            told = observed(self._signal(HISTORY), self._asked, now)
            lacking = (
                f"Electricity Maps: this key has only the last 24 hours of {self._asked.zone}; "
                f"{stamp(start)} to {stamp(last)} was asked for.",
            )
            more = lacking if first < now - LAST_DAY - self._asked.step else ()
            reading = DecodedRows(rows=told.rows, refused=(*told.refused, *more))
        within = tuple(row for row in reading.rows if start <= row.start < end)
        return self._batch(DecodedRows(rows=within, refused=reading.refused), now)

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Fetch the newest forecast; without one in the plan it is empty, with a reason."""
        horizon_h = next((each for each in HORIZONS_H if each >= hours), HORIZONS_H[-1])
        why = "asked for at most once a day"
        if not self._is_denied(FORECAST, now):
            try:
                body = self._signal(FORECAST, {"horizonHours": str(horizon_h)})
                told = forecast(body, self._asked, now)
                return batch(told, signal=self.signal, step=self._asked.step, now=now, judged=False)
            except NotEntitled as error:
                self._denied[FORECAST] = now + DENIED_FOR
                why = str(error)
        sentence = f"Electricity Maps: this key has no forecast for {self._asked.zone} ({why})."
        return CarbonBatch(points=(), refused=(sentence,))

    def close(self) -> None:
        """End the request thread."""
        self._http.close()

    def _ranges(self, first: datetime, last: datetime, now: datetime) -> DecodedRows | None:
        """Fetch [first, last) in spans; None when the plan lacks the endpoint."""
        if self._is_denied(RANGE, now):
            return None
        try:
            return joined(self._spans(first, last, now))
        except NotEntitled:
            self._denied[RANGE] = now + DENIED_FOR
            return None

    def _spans(self, first: datetime, last: datetime, now: datetime) -> Iterator[DecodedRows]:
        """Fetch the spans one after the other; an empty one does not stop the others.

        Raises:
            NoData: all of them are empty.
        """
        empty: NoData | None = None
        told = False
        while first < last:
            until = min(first + LONGEST[self._asked.granularity], last)
            try:
                body = self._signal(RANGE, {"start": stamp(first), "end": stamp(until)})
                yield observed(body, self._asked, now)
                told = True
            except NoData as error:
                empty = error
            first = until
        if empty and not told:
            raise empty

    def _signal(self, endpoint: str, query: dict[str, str] | None = None) -> Any:
        asked = self._asked
        wanted = {
            "zone": asked.zone,
            "disableCallerLookup": "true",
            "emissionFactorType": asked.factor,
        }
        # v3 had only hours for a long time, which are its default.
        if self._version != "v3" or asked.granularity != "hourly":
            wanted["temporalGranularity"] = asked.granularity
        return self._get(f"/carbon-intensity/{endpoint}", wanted | (query or {}))

    def _get(self, path: str, query: dict[str, str]) -> Any:
        return self._http.get(
            self._prefix + path,
            query=query,
            credentials=self._credentials,
            classify=verdict,
        )

    def _batch(self, reading: DecodedRows, now: datetime) -> CarbonBatch:
        return batch(reading, signal=self.signal, step=self._asked.step, now=now)

    def _is_denied(self, endpoint: str, now: datetime) -> bool:
        """Tell whether the plan lacked an endpoint less than `DENIED_FOR` ago."""
        until = self._denied.get(endpoint)
        return until is not None and now < until

    def _uncovered(self, mine: Any) -> SourceRefused:
        """The error for a zone that the key does not cover, or that does not exist."""
        zone = self._asked.zone
        everywhere = self._http.get(f"{self._prefix}/zones", classify=verdict)
        if isinstance(everywhere, dict) and zone not in everywhere:
            return UnknownZone(
                f"Electricity Maps has no zone {zone!r} among its {len(everywhere)}; "
                "app.electricitymaps.com shows them on a map"
            )
        covered = ", ".join(sorted(mine)[:5]) if isinstance(mine, dict) else ""
        return NotEntitled(
            f"Electricity Maps: this key does not cover zone {zone!r}; it covers "
            f"{covered or 'none'}"
        )


def _may(access: list[str], endpoint: str) -> bool:
    """Tell whether an access list, with or without version and slash, names an endpoint."""
    path = f"carbon-intensity/{endpoint}"
    return any(each in ("*", "/*") or each.endswith(path) for each in access)
