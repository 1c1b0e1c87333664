"""The average intensity of a US balancing authority, derived from its generation: EIA-930.

EIA (public domain, free key) publishes megawatt-hours by fuel and hour; `fuel_mix.py` derives the
intensity. Imports are not included. Hours are UTC; most authorities label an hour by its end, the
others need `label`. Values are about a day late.

Invariant: an hour with an incomplete mix is refused with a reason, unless the missing fuel is
negligible.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.errors import AuthFailed, InputInvalid, NoData, Transient, ZoneMismatch
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.fuel_mix import DIRECT_G_PER_KWH
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.reading.mixed_hours import (
    MixedHours,
    checked_factors,
    model_name,
)
from wattmesh.integrations.carbon.reading.told_hours import HOUR, ToldHours
from wattmesh.telemetry.carbon import CarbonBatch, Signal

BASE_URL = "https://api.eia.gov/v2"
PATH = "/electricity/rto/fuel-type-data/data/"
ORIGIN = datetime(2019, 1, 1, tzinfo=UTC)
LAG = timedelta(hours=24)
LABELS = ("ending", "starting")
ROWS = 5000
"""Most rows of one answer in JSON."""
MOST_PAGES = 40
"""About a year and a half of hours with fourteen fuels."""
MODEL = "EIA-930 mix"

_FORM = "%Y-%m-%dT%H"
HTTP_FORBIDDEN = 403


class Eia930(ToldHours):
    """One balancing authority as a series of hours (`Provider`)."""

    def __init__(
        self,
        *,
        zone: str,
        key: str,
        factors_g_per_kwh: Mapping[str, float] | None = None,
        label: str = "ending",
        base_url: str = BASE_URL,
        http: JsonHttp | None = None,
    ) -> None:
        """Take the authority and the key.

        Args:
            zone: code of the authority, e.g. CISO, PJM, ERCO.
            key: the API key.
            factors_g_per_kwh: emission factors by fuel code that replace the defaults.
            label: whether an hour is labelled by its `ending` (as EIA documents) or `starting`.
            base_url: another address of the same API.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: an unknown label, a malformed key or zone, or a factor below zero.
        """
        if label not in LABELS:
            raise InputInvalid(f"carbon: label {label!r} is not one of {', '.join(LABELS)}")
        if not zone.isalnum():
            raise InputInvalid(f"carbon: zone {zone!r} is no code of an authority like CISO")
        own = dict(factors_g_per_kwh or {})
        factors = checked_factors(own, DIRECT_G_PER_KWH)
        self._zone = zone
        self._credentials = Credentials.parameter("api_key", key)
        self._shift = HOUR if label == "ending" else timedelta()
        self._http = http or JsonHttp(base_url)
        signal, model = Signal(provider="eia930", zone=zone), model_name(MODEL, own)
        super().__init__(signal=signal, model=model, origin=ORIGIN, lag=LAG, asks=self._http)
        self._mixed = MixedHours(signal=signal, factors_g_per_kwh=factors, model=model)

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the hours that begin in [start, end), in pages of 5000 rows.

        Raises:
            NoData: none is told. SourceUnavailable: nothing usable came. SourceRefused: the key or
                the zone is wrong.
        """
        refused: list[str] = []
        hours: dict[datetime, dict[str, float | None]] = {}
        for row in self._rows(start + self._shift, end + self._shift):
            begin, fuel, energy_mwh = self._row(row, refused)
            if begin is not None and start <= begin < end:
                hours.setdefault(begin, {})[fuel] = energy_mwh
        return self._mixed.batch(hours, refused, now)

    def _rows(self, start: datetime, end: datetime) -> Iterator[Any]:
        """Fetch the rows whose label is in [start, end], page by page.

        Raises:
            NoData: there are none. Transient: the answer has another form.
        """
        query = {
            "frequency": "hourly",
            "data[0]": "value",
            "facets[respondent][]": self._zone,
            "start": f"{start.astimezone(UTC):{_FORM}}",
            "end": f"{end.astimezone(UTC):{_FORM}}",
            "sort[0][column]": "period",
            "sort[0][direction]": "asc",
            "length": str(ROWS),
        }
        told = 0
        for _ in range(MOST_PAGES):
            body = self._http.get(
                PATH,
                query={**query, "offset": str(told)},
                credentials=self._credentials,
                classify=_classify,
            )
            rows = _page(body)
            yield from rows
            told += len(rows)
            if len(rows) < ROWS:
                break
        if not told:
            raise NoData(
                f"EIA has no fuel mix of {self._zone} from {query['start']} to {query['end']} UTC; "
                "it comes about a day late, and an unknown authority looks the same"
            )

    def _row(self, row: Any, refused: list[str]) -> tuple[datetime | None, str, float | None]:
        """Decode one row: the start of its hour, the fuel, and its energy if that is a number.

        Raises:
            ZoneMismatch: it is of another authority.
        """
        try:
            period, fuel, zone = row["period"], row["fueltype"], row["respondent"]
            begin = datetime.strptime(period, _FORM).replace(tzinfo=UTC) - self._shift
        except (LookupError, TypeError, ValueError):
            refused.append(
                f"EIA sent {str(row)[:120]!r}: not a fuel of an hour like 2026-08-25T14."
            )
            return None, "", None
        if zone != self._zone:
            raise ZoneMismatch(
                f"EIA answered for {str(zone)[:20]!r}, asked for {self._zone!r}; nothing was stored"
            )
        value, units = row.get("value"), row.get("value-units", "megawatthours")
        energy_mwh = _number(value)
        if units != "megawatthours":
            refused.append(f"EIA sent {fuel} in {units}, not in megawatthours; it is ignored.")
            energy_mwh = None
        elif energy_mwh is None and value is not None:
            refused.append(f"EIA sent {str(value)[:40]!r} for {fuel}, which is no number.")
        return begin, str(fuel), energy_mwh


def _page(body: Any) -> list[Any]:
    response = body.get("response") if isinstance(body, dict) else None
    rows = response.get("data") if isinstance(response, dict) else None
    if not isinstance(rows, list):
        raise Transient(f"EIA answered {str(body)[:80]!r}, which has no response.data")
    return rows


def _number(value: Any) -> float | None:
    """Decode megawatt-hours, text in newer answers and a number in older ones."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _classify(answer: ErrorAnswer) -> ErrorClass | None:
    """Decode EIA's errors: a missing, wrong or suspended key gets 403."""
    if answer.status == HTTP_FORBIDDEN:
        advice = "check the key in key_file; EIA suspends keys that ask too often for a while"
        return ErrorClass(error=AuthFailed, advice=advice)
    return None
