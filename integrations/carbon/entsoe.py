"""The average intensity of a European zone, derived from its generation: ENTSO-E's A75.

ENTSO-E (CC BY 4.0, free token) publishes actual generation per type in megawatts, in intervals of
15, 30 or 60 minutes, within hours (Regulation (EU) 543/2013, article 16); operators revise it.
`fuel_mix.py` derives the intensity of whole hours. Imports are not included. What storage gives
back was generated in other hours, and is left out in both directions.

Invariant: an hour in which a type that matters is missing, in part or as a whole, is refused.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from wattmesh.errors import NoData, ZoneMismatch
from wattmesh.integrations.carbon.reading.entsoe_platform import BASE_URL, EntsoePlatform, area_of
from wattmesh.integrations.carbon.reading.entsoe_xml import Acknowledgement, MarketDocument
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.reading.mixed_hours import (
    MixedHours,
    checked_factors,
    model_name,
)
from wattmesh.integrations.carbon.reading.told_hours import HOUR, ToldHours
from wattmesh.telemetry.carbon import CarbonBatch, Signal

LIGNITE_G_PER_KWH = 1070.0
"""407 g per kWh of heat (raw lignite; Landesamt fuer Umwelt Brandenburg, emission factors by
carrier) at an efficiency of 38 %, which is assumed."""

FACTORS_G_PER_KWH: Mapping[str, float] = {
    "B01": 0.0,
    "B02": LIGNITE_G_PER_KWH,
    "B03": 760.0,
    "B04": 370.0,
    "B05": 760.0,
    "B06": 406.0,
    "B09": 0.0,
    "B11": 0.0,
    "B12": 0.0,
    "B13": 0.0,
    "B14": 0.0,
    "B15": 575.0,
    "B16": 0.0,
    "B17": 575.0,
    "B18": 0.0,
    "B19": 0.0,
    "B20": 575.0,
}
"""CO2 from burning by type of production. All but lignite are the direct factors of DACF, as for
`fuel_mix.DIRECT_G_PER_KWH`: coal (B05; B03, gas made of coal, is taken as coal), gas, oil, and
other for B15, B17 (waste) and B20; biomass counts as 0 there. Oil shale (B07) and peat (B08) have
none: such hours want a factor of the user's."""

STORAGE = frozenset({"B10", "B25"})
"""Pumped storage, other storage."""

ORIGIN = datetime(2015, 1, 1, tzinfo=UTC)
LAG = timedelta(hours=2)
SPAN = timedelta(days=14)
"""Of one request: some 20,000 points in quarter hours, 2 MB."""
MODEL = "ENTSO-E mix"

Interval = tuple[datetime, datetime, float]
"""Start, end, and megawatts."""


class EntsoeMix(ToldHours):
    """One zone as a series of hours (`Provider`)."""

    def __init__(
        self,
        *,
        zone: str,
        token: str,
        factors_g_per_kwh: Mapping[str, float] | None = None,
        base_url: str = BASE_URL,
        http: JsonHttp | None = None,
    ) -> None:
        """Take the zone and the token.

        Args:
            zone: a key of `AREAS`, or a code of 16 characters.
            token: the security token of an account.
            factors_g_per_kwh: emission factors by type (B01 to B25) that replace the defaults.
            base_url: another address of the same API.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: an unknown zone, a malformed token, or a factor below zero.
        """
        own = dict(factors_g_per_kwh or {})
        self._zone, self._area = zone, area_of(zone)
        self._platform = EntsoePlatform(token=token, base_url=base_url, http=http)
        signal, model = Signal(provider="entsoe", zone=zone), model_name(MODEL, own)
        super().__init__(signal=signal, model=model, origin=ORIGIN, lag=LAG, asks=self._platform)
        factors = checked_factors(own, FACTORS_G_PER_KWH)
        self._mixed = MixedHours(signal=signal, factors_g_per_kwh=factors, model=model)
        self._storage = STORAGE - own.keys()

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the hours that begin in [start, end), in requests of 14 days.

        Raises:
            NoData: none is told. SourceUnavailable: nothing usable came. SourceRefused: the token
                or the zone is wrong.
        """
        refused: list[str] = []
        hours: dict[datetime, dict[str, float | None]] = {}
        nothing, found = "", False
        first = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        query = {"documentType": "A75", "processType": "A16", "in_Domain": self._area}
        while first < end:
            last = min(end.astimezone(UTC), first + SPAN)
            document = self._platform.document(query, first, last, zone=self._zone)
            if isinstance(document, Acknowledgement):
                nothing = document.text
            else:
                found = True
                for begin, mix in self._hours(document, refused).items():
                    if start <= begin < end:
                        hours[begin] = mix
            first = last
        if not found:
            raise NoData(
                f"ENTSO-E has no generation of {self._zone} for {start:%Y-%m-%d %H:%M} to "
                f"{end:%Y-%m-%d %H:%M} UTC ({nothing[:120]})"
            )
        return self._mixed.batch(hours, refused, now, comes_within=LAG)

    def _hours(
        self, document: MarketDocument, refused: list[str]
    ) -> dict[datetime, dict[str, float | None]]:
        """Add a document's intervals up to megawatt-hours by type and hour.

        A type has None in an hour that its intervals do not cover whole.

        Raises:
            ZoneMismatch: the document is of another zone.
        """
        refused += [f"ENTSO-E: {why}" for why in document.refused]
        told: dict[datetime, dict[str, list[Interval]]] = {}
        unread = set()
        for series in document.series:
            if series.zone != self._area:
                raise ZoneMismatch(
                    f"ENTSO-E answered for {series.zone[:20]!r}, asked for {self._area!r}; nothing "
                    "was stored"
                )
            if series.leaves or series.production in self._storage:
                continue
            fuel = series.production or "?"
            if series.unread:
                unread.add(fuel)
            for interval in series.intervals:
                begin = interval[0].astimezone(UTC).replace(minute=0, second=0, microsecond=0)
                fuels = told.setdefault(begin, {})
                fuels.setdefault(fuel, []).append(interval)
        return {
            begin: {
                **dict.fromkeys(unread),
                **{fuel: _energy_mwh(begin, each) for fuel, each in fuels.items()},
            }
            for begin, fuels in told.items()
        }


def _energy_mwh(begin: datetime, intervals: list[Interval]) -> float | None:
    """Add up an hour of one type; None where its intervals do not follow one another through it."""
    intervals = sorted(intervals)
    borders = [begin, *(end for _, end, _ in intervals)]
    if borders[-1] != begin + HOUR or [start for start, _, _ in intervals] != borders[:-1]:
        return None
    return sum(megawatts * ((end - start) / HOUR) for start, end, megawatts in intervals)
