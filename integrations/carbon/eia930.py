"""The average intensity of a US balancing authority, derived from its generation: EIA-930.

EIA (public domain, free key) publishes megawatt-hours by fuel and hour; `fuel_mix.py` derives the
intensity. Imports are not included. Hours are UTC; most authorities label an hour by its end, the
others need `label`. Values are about a day late.

Invariant: an hour with an incomplete mix is refused with a reason, unless the missing fuel is
negligible.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.integrations.carbon.reading.eia_api import BASE_URL, UNIT, EiaApi
from wattmesh.integrations.carbon.reading.fuel_mix import DIRECT_G_PER_KWH
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.reading.json_shape import finite_number
from wattmesh.integrations.carbon.reading.mixed_hours import (
    MixedHours,
    checked_factors,
    model_name,
)
from wattmesh.integrations.carbon.reading.told_hours import ToldHours
from wattmesh.telemetry.carbon import CarbonBatch, Signal

PATH = "/electricity/rto/fuel-type-data/data/"
ORIGIN = datetime(2019, 1, 1, tzinfo=UTC)
LAG = timedelta(hours=24)
MODEL = "EIA-930 mix"
NOTHING = "fuel mix (it comes about a day late, and an unknown authority looks the same)"


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
        own = dict(factors_g_per_kwh or {})
        factors = checked_factors(own, DIRECT_G_PER_KWH)
        self._api = EiaApi(zone=zone, key=key, label=label, base_url=base_url, http=http)
        signal, model = Signal(provider="eia930", zone=zone), model_name(MODEL, own)
        super().__init__(signal=signal, model=model, origin=ORIGIN, lag=LAG, asks=self._api)
        self._mixed = MixedHours(signal=signal, factors_g_per_kwh=factors, model=model)

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the hours that begin in [start, end), in pages of 5000 rows.

        Raises:
            NoData: none is told. SourceUnavailable: nothing usable came. SourceRefused: the key or
                the zone is wrong.
        """
        refused: list[str] = []
        hours: dict[datetime, dict[str, float | None]] = {}
        for row in self._api.rows(PATH, start, end, nothing=NOTHING):
            begin, fuel, energy_mwh = self._row(row, refused)
            if begin is not None and start <= begin < end:
                hours.setdefault(begin, {})[fuel] = energy_mwh
        return self._mixed.batch(hours, refused, now)

    def _row(self, row: Any, refused: list[str]) -> tuple[datetime | None, str, float | None]:
        """Decode one row: the start of its hour, the fuel, and its energy if that is a number.

        Raises:
            ZoneMismatch: it is of another authority.
        """
        begin = self._api.begin(row)
        fuel = None if begin is None else row.get("fueltype")
        if begin is None or fuel is None:
            refused.append(
                f"EIA sent {str(row)[:120]!r}: not a fuel of an hour like 2026-08-25T14."
            )
            return None, "", None
        value, units = row.get("value"), row.get("value-units", UNIT)
        energy_mwh = finite_number(value)
        if units != UNIT:
            refused.append(f"EIA sent {fuel} in {units}, not in {UNIT}; it is ignored.")
            energy_mwh = None
        elif energy_mwh is None and value is not None:
            refused.append(f"EIA sent {str(value)[:40]!r} for {fuel}, which is no number.")
        return begin, str(fuel), energy_mwh
