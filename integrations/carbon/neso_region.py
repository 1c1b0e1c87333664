"""A region of Great Britain: NESO's forecasts by region number or postcode (CC BY 4.0, no key).

Invariant: no value is called measured. NESO publishes no actual values for regions, so this series
can be used for decisions but not for accounting (`Series.observed` is False).
"""

from datetime import datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid, Transient, ZoneMismatch
from wattmesh.integrations.carbon.neso import (
    AHEAD_S,
    BASE_URL,
    FORM,
    HALF_HOUR,
    MODEL,
    ORIGIN,
    expected,
    half_hour,
    rows_of,
)
from wattmesh.integrations.carbon.reading.http import BehindBreaker, JsonHttp
from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, Series, Signal

REGIONS = 17
"""Number of regions, from 1 on: fourteen distribution grids, England, Scotland, Wales."""

LONGEST_POSTCODE = 4


def is_region(zone: str) -> bool:
    """Tell whether a zone is a region: a number like `13`, or the outward postcode like `RG10`.

    They are the values of `regionid` and `postcode` in NESO's URLs.
    """
    if zone.isdecimal():
        return 1 <= int(zone) <= REGIONS and zone == str(int(zone))
    letters = zone.isascii() and zone.isalnum() and zone.isupper() and zone[:1].isalpha()
    return letters and 2 <= len(zone) <= LONGEST_POSTCODE and any(map(str.isdecimal, zone))


class NesoRegion(BehindBreaker):
    """The forecast of one region (`Provider`)."""

    def __init__(
        self, *, zone: str, base_url: str = BASE_URL, http: JsonHttp | None = None
    ) -> None:
        """Set the region; `base_url` or `http` select a mirror or a test server.

        Raises:
            InputInvalid: it is neither a region's number nor an outward postcode.
        """
        if not is_region(zone):
            raise InputInvalid(
                f"carbon: zone {zone!r} is no region of neso; it serves 1 to {REGIONS} (the "
                "region's number) and postcodes by their first half, e.g. RG10"
            )
        self._zone = zone
        self._http = http or JsonHttp(base_url)

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        return Signal(provider="neso", zone=self._zone)

    @property
    def series(self) -> Series:
        """Half hours from :00 and :30 UTC, forecast only."""
        return Series(
            interval_s=HALF_HOUR.total_seconds(),
            origin=ORIGIN,
            cadence_s=HALF_HOUR.total_seconds(),
            observed=False,
            forecast_s=AHEAD_S,
            trailing=timedelta(),
            deep_trailing=timedelta(),
        )

    def capabilities(self, now: datetime) -> Capabilities:
        """Fetch a forecast, which shows whether the region is known.

        Raises:
            SourceUnavailable: no usable answer. ZoneMismatch: it answered for another region.
        """
        self.forecast(1.0, now=now)
        return Capabilities(
            latest=False,
            history=False,
            forecast=True,
            models=(MODEL,),
            detail="Regions have forecasts only: use zone GB to account with.",
        )

    def latest(self, now: datetime) -> CarbonBatch:
        """Return nothing: NESO publishes no actual values for regions."""
        return CarbonBatch(points=())

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Return nothing: NESO publishes no actual values for regions."""
        return CarbonBatch(points=())

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Fetch the newest forecast from the current half hour on, at most 48 h.

        Raises:
            NoData: it has none. ZoneMismatch: it is of another region. SourceUnavailable: no
                usable answer.
        """
        by = "regionid" if self._zone.isdecimal() else "postcode"
        first = half_hour(now)
        body = self._http.get(f"/regional/intensity/{first:{FORM}}/fw48h/{by}/{self._zone}")
        region = self._region(body, by)
        return expected(
            rows_of(region), signal=self.signal, until=now + timedelta(hours=hours), now=now
        )

    def _region(self, body: Any, by: str) -> dict[str, Any]:
        """Return the region's object, alone or in a list of one, after checking the region.

        Raises:
            Transient: the answer is malformed. ZoneMismatch: it is of another region.
        """
        region = body.get("data") if isinstance(body, dict) else None
        if isinstance(region, list) and len(region) == 1:
            region = region[0]
        if not isinstance(region, dict):
            raise Transient(f"NESO answered {str(body)[:80]!r}, which has no region")
        answered = region.get(by)
        if answered is not None and str(answered) != self._zone:
            raise ZoneMismatch(
                f"NESO answered for {by} {str(answered)[:20]!r}, asked for {self._zone!r}; nothing "
                "was stored: check carbon.decision.zone"
            )
        return region
