"""The average intensity of Australian grids, from energy and emissions: Open Electricity, API v4.

Open Electricity (formerly OpenNEM; free key, CC BY-NC 4.0, commercial use by agreement) publishes
megawatt-hours and tonnes of CO2 equivalent by group of fuels, from AEMO's dispatch data and the
emission factors of each unit (operational emissions). The intensity of an hour is their ratio over
all that generates. Imports are not included; batteries and pumps are left out in both directions.

Invariant: an hour in which a group that generates has no energy or no emissions is refused, and so
is one with a group that nobody has heard of; a value in another unit is no value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlencode

from wattmesh.errors import AuthFailed, InputInvalid, NoData
from wattmesh.integrations.carbon.open_electricity_answers import (
    GENERATE,
    LEFT_OUT,
    UNITS,
    intensity,
    told,
)
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.believed import PlausibilityFilter, refusal
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.reading.told_hours import HOUR, ToldHours
from wattmesh.telemetry.carbon import CarbonBatch, CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality

BASE_URL = "https://api.openelectricity.org.au"
PATH = "/v4/data/network/"
ORIGIN = datetime(2010, 1, 1, tzinfo=UTC)
LAG = timedelta(hours=2)
"""Before that an hour may lack dispatch intervals that come late."""
SPAN = timedelta(days=25)
"""Of one request; hourly ones may be 32 days long (docs: Data Limits)."""
REMEMBERED = timedelta(days=10)
MODEL = "Open Electricity"
HTTP_UNAUTHORIZED, HTTP_FORBIDDEN = 401, 403

NETWORKS: Mapping[str, str] = {
    **dict.fromkeys(("NEM", "NSW1", "QLD1", "SA1", "TAS1", "VIC1"), "NEM"),
    "WEM": "WEM",
}
"""Zones, and the network that each is in."""

LOCAL: Mapping[str, timezone] = {
    "NEM": timezone(timedelta(hours=10)),
    "WEM": timezone(timedelta(hours=8)),
}
"""The networks' own time, without summer time: questions are in it, and name no offset."""

Key = tuple[datetime, str]


@dataclass(slots=True)
class _GroupSeen:
    """When a group of fuels generated first and last."""

    first: datetime
    last: datetime


class OpenElectricity(ToldHours):
    """One network or region as a series of hours (`Provider`)."""

    def __init__(
        self, *, zone: str, key: str, base_url: str = BASE_URL, http: JsonHttp | None = None
    ) -> None:
        """Take the zone and the key.

        Args:
            zone: a key of `NETWORKS`.
            key: the API key.
            base_url: another address of the same API.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: an unknown zone, or a malformed key.
        """
        if zone not in NETWORKS:
            raise InputInvalid(f"carbon: zone {zone!r} is not one of {', '.join(NETWORKS)}")
        self._zone, self._network = zone, NETWORKS[zone]
        self._credentials = Credentials.header("Authorization", key, scheme="Bearer")
        self._http = http or JsonHttp(base_url)
        signal = Signal(provider="open_electricity", zone=zone, gas="CO2eq")
        super().__init__(signal=signal, model=MODEL, origin=ORIGIN, lag=LAG, asks=self._http)
        self._seen: dict[str, _GroupSeen] = {}

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the hours that begin in [start, end), in requests of 25 days.

        Raises:
            NoData: none is told. SourceUnavailable: nothing usable came. SourceRefused: the key is
                wrong.
        """
        refused: list[str] = []
        values: dict[str, dict[Key, float | None]] = {metric: {} for metric in UNITS}
        first = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        while first < end:
            last = min(end.astimezone(UTC), first + SPAN)
            body = self._ask(first, last)
            for each in told(body, network=self._network, zone=self._zone, refused=refused):
                if start <= each.at < end:
                    known, key = values[each.metric], (each.at, each.group)
                    # Told twice and otherwise: which of them is true is not known.
                    known[key] = each.value if known.get(key, each.value) == each.value else None
            first = last
        if not any(values.values()):
            raise NoData(
                f"Open Electricity has no generation of {self._zone} for {start:%Y-%m-%d %H:%M} to "
                f"{end:%Y-%m-%d %H:%M} UTC"
            )
        return self._batch(values["energy"], values["emissions"], refused, now)

    def _ask(self, first: datetime, last: datetime) -> Any:
        """Fetch both metrics."""
        local = LOCAL[self._network]
        query = {
            "interval": "1h",
            "date_start": f"{first.astimezone(local):%Y-%m-%dT%H:%M:%S}",
            "date_end": f"{last.astimezone(local):%Y-%m-%dT%H:%M:%S}",
            "secondary_grouping": "fueltech_group",
        }
        if self._zone != self._network:
            query |= {"primary_grouping": "network_region", "network_region": self._zone}
        # Written out: one parameter stands there twice.
        asked = f"metrics=energy&metrics=emissions&{urlencode(query)}"
        return self._http.get(
            f"{PATH}{self._network}?{asked}", credentials=self._credentials, classify=_classify
        )

    def _batch(
        self,
        energy_mwh: Mapping[Key, float | None],
        emissions_t: Mapping[Key, float | None],
        refused: list[str],
        now: datetime,
    ) -> CarbonBatch:
        for (at, group), value in energy_mwh.items():
            if value and group in GENERATE:
                seen = self._seen.setdefault(group, _GroupSeen(at, at))
                seen.first, seen.last = min(seen.first, at), max(seen.last, at)
        judge, points = PlausibilityFilter(), []
        hours: dict[datetime, set[str]] = {}
        for at, group in (*energy_mwh, *emissions_t):
            hours.setdefault(at, set()).add(group)
        for begin in sorted(hours):
            if begin + HOUR > now:
                continue
            groups = hours[begin] | self._expected(begin)
            value, why = intensity(
                {each: energy_mwh.get((begin, each)) for each in groups - LEFT_OUT},
                {each: emissions_t.get((begin, each)) for each in groups - LEFT_OUT},
            )
            why = why or judge.fault(begin, value)
            if why or value is None:
                refused.append(refusal(begin, why))
                continue
            points.append(
                CarbonPoint(
                    signal=self.signal,
                    start=begin,
                    end=begin + HOUR,
                    g_per_kwh=value,
                    # The newest hour may lack intervals; it is asked for again.
                    quality=Quality.MEASURED if begin + HOUR + LAG <= now else Quality.ESTIMATED,
                    issued_at=begin + HOUR,
                    fetched_at=now,
                    model=MODEL,
                )
            )
        return CarbonBatch(points=tuple(points), refused=tuple(dict.fromkeys(refused)))

    def _expected(self, begin: datetime) -> set[str]:
        """Name the groups that generated shortly before and after an hour."""
        return {
            group
            for group, seen in self._seen.items()
            if seen.first - REMEMBERED <= begin <= seen.last + REMEMBERED
        }


def _classify(answer: ErrorAnswer) -> ErrorClass | None:
    """Decode errors: a missing or wrong key gets 401 or 403."""
    if answer.status in (HTTP_UNAUTHORIZED, HTTP_FORBIDDEN):
        return ErrorClass(error=AuthFailed, advice="check the key in key_file")
    return None
