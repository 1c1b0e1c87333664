"""Open-Meteo: forecasts of the weather at some places of a zone, without a key (CC BY 4.0).

Free for non-commercial use up to a daily limit; others use their own address. The past is asked of
the previous-runs service, which tells what was forecast 24 hours before each hour; what its
historical-forecast service tells was known only hours before, and would flatter.

Invariant: a zone's value is the weighted mean of all its places or nothing; units are those that
were asked for, or the value is refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid, SourceUnavailable, Transient, ZoneMismatch
from wattmesh.integrations.carbon.exogenous.collected import HOUR, Collected
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.http import BehindBreaker, JsonHttp
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousKind

BASE_URL = "https://api.open-meteo.com"
PAST_URL = "https://previous-runs-api.open-meteo.com"
PATH = "/v1/forecast"
DAYS = 4
SPAN = timedelta(days=60)
DELAY = timedelta(hours=6)
"""From the start of a model's run until it can be fetched."""
MOST_PLACES = 50
FAR_DEGREES = 1.0
"""A grid cell lies nearer to what was asked for."""
LAST_S = 2**32
"""Seconds since 1970, in the year 2106."""
HTTP_BAD_REQUEST = 400
KELVIN = 273.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One of Open-Meteo's variables. `before`: it is of the hour that ends at its time."""

    name: str
    unit: str
    plus: float = 0.0
    before: bool = False


VARIABLES: Mapping[ExogenousKind, Variable] = {
    ExogenousKind.WIND_SPEED: Variable(name="wind_speed_10m", unit="m/s"),
    ExogenousKind.RADIATION: Variable(name="shortwave_radiation", unit="W/m²", before=True),
    ExogenousKind.TEMPERATURE: Variable(name="temperature_2m", unit="°C", plus=KELVIN),
    ExogenousKind.DEW_POINT: Variable(name="dew_point_2m", unit="°C", plus=KELVIN),
    ExogenousKind.PRECIPITATION: Variable(name="precipitation", unit="mm", before=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place, and its share in the zone's mean."""

    latitude: float
    longitude: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no place.

        Raises:
            InputInvalid: not on Earth, or no weight.
        """
        if not (abs(self.latitude) <= 90 and abs(self.longitude) <= 180):
            raise InputInvalid(f"carbon: {self.latitude}, {self.longitude} is no place on Earth")
        if not (0 < self.weight < math.inf):
            raise InputInvalid(f"carbon: the weight of a place is {self.weight}; it must be > 0")


class OpenMeteo(BehindBreaker):
    """The weather of one zone (`ExogenousProvider`)."""

    def __init__(
        self,
        *,
        zone: str,
        places: Sequence[Place],
        base_url: str = BASE_URL,
        past_url: str = PAST_URL,
        http: JsonHttp | None = None,
        past_http: JsonHttp | None = None,
    ) -> None:
        """Take the zone's places, weighted as its wind and sun are spread.

        Raises:
            InputInvalid: no place, or too many.
        """
        if not 0 < len(places) <= MOST_PLACES:
            raise InputInvalid(
                f"carbon: {len(places)} places; from 1 to {MOST_PLACES} can be asked"
            )
        self._zone, self._places = zone, tuple(places)
        self._http = http or JsonHttp(base_url)
        self._past_http = past_http or JsonHttp(past_url)

    @property
    def kinds(self) -> tuple[ExogenousKind, ...]:
        """The weather."""
        return tuple(VARIABLES)

    @property
    def cadence(self) -> timedelta:
        """Global models run every six hours."""
        return timedelta(hours=3)

    def forecast(self, *, now: datetime) -> ExogenousBatch:
        """Fetch the newest forecast.

        Raises:
            SourceUnavailable: nothing usable came.
        """
        told = Collected(provider="open_meteo", zone=self._zone, now=now)
        answer = self._ask(self._http, {"forecast_days": str(DAYS)}, "")
        self._collect(answer, "", told)
        return told.batch(now)

    def past_forecasts(self, start: datetime, end: datetime, *, now: datetime) -> ExogenousBatch:
        """Fetch what was forecast of [start, end) a day before.

        Raises:
            SourceUnavailable: nothing usable came.
        """
        told = Collected(provider="open_meteo", zone=self._zone, now=now)
        first = start.astimezone(UTC)
        while first < end:
            last = min(end.astimezone(UTC), first + SPAN)
            dates = {"start_date": f"{first:%Y-%m-%d}", "end_date": f"{last:%Y-%m-%d}"}
            suffix = "_previous_day1"
            self._collect(self._ask(self._past_http, dates, suffix), suffix, told)
            first = last
        day_ago = timedelta(days=1) - DELAY
        hours = range(-48, math.ceil((end - start) / HOUR) + 48)
        begin = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        issued = {begin + n * HOUR: min(now, begin + n * HOUR - day_ago) for n in hours}
        return told.batch(issued)

    def _ask(self, http: JsonHttp, query: Mapping[str, str], suffix: str) -> list[Any]:
        """Ask for all places at once; one place alone is answered without a list."""
        answer = http.get(
            PATH,
            query={
                "latitude": ",".join(f"{each.latitude:g}" for each in self._places),
                "longitude": ",".join(f"{each.longitude:g}" for each in self._places),
                "hourly": ",".join(each.name + suffix for each in VARIABLES.values()),
                "wind_speed_unit": "ms",
                "timeformat": "unixtime",
                "timezone": "GMT",
                **query,
            },
            classify=_classify,
        )
        told = answer if isinstance(answer, list) else [answer]
        if len(told) != len(self._places):
            raise Transient(
                f"Open-Meteo answered for {len(told)} places, asked for {len(self._places)}"
            )
        return told

    def _collect(self, answer: Sequence[Any], suffix: str, told: Collected) -> None:
        """Average the places, hour by hour."""
        sums: dict[tuple[ExogenousKind, datetime], float] = {}
        weights: dict[tuple[ExogenousKind, datetime], float] = {}
        whole = sum(place.weight for place in self._places)
        for place, one in zip(self._places, answer, strict=True):
            for kind, start, value in _values(one, place, suffix, told):
                key = (kind, start)
                sums[key] = sums.get(key, 0.0) + place.weight * value
                weights[key] = weights.get(key, 0.0) + place.weight
        for (kind, start), weight in weights.items():
            if math.isclose(weight, whole):
                told.add(kind, start, start + HOUR, sums[kind, start] / whole)


def _values(
    one: Any, place: Place, suffix: str, told: Collected
) -> list[tuple[ExogenousKind, datetime, float]]:
    """Decode the answer for a place.

    Raises:
        Transient: it has another form. ZoneMismatch: it is for another place.
    """
    try:
        off = (abs(one["latitude"] - place.latitude), abs(one["longitude"] - place.longitude))
        units, hourly = dict(one["hourly_units"]), dict(one["hourly"])
        starts = [_moment(each) for each in hourly["time"]]
    except (LookupError, TypeError, ValueError, OverflowError, OSError) as error:
        raise Transient(f"Open-Meteo's answer has another form: {error!r}") from error
    if not all(each <= FAR_DEGREES for each in off):  # NaN is no place either
        raise ZoneMismatch(
            f"Open-Meteo answered for {one['latitude']}, {one['longitude']}, asked for "
            f"{place.latitude}, {place.longitude}; nothing was used"
        )
    found = []
    for kind, variable in VARIABLES.items():
        name = variable.name + suffix
        row = hourly.get(name)
        if units.get(name) != variable.unit or not isinstance(row, list):
            told.refuse(f"Open-Meteo: {name} in {units.get(name)!r}, not in {variable.unit}")
            continue
        shift = HOUR if variable.before else timedelta()
        found += [
            (kind, start - shift, _number(value) + variable.plus)
            for start, value in zip(starts, row, strict=False)
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
    return found


def _moment(seconds: Any) -> datetime:
    """Decode a time.

    Raises:
        ValueError: no forecast is of it, and further hours may not be dates at all.
    """
    if not 0 <= seconds < LAST_S:
        raise ValueError(f"the time {str(seconds)[:20]}")
    return datetime.fromtimestamp(int(seconds), UTC)


def _number(value: float) -> float:
    """Give JSON's number; an integer beyond all floats is as refused as infinity is."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _classify(answer: ErrorAnswer) -> ErrorClass | None:
    """Decode Open-Meteo's errors: what it cannot answer gets 400 and a reason."""
    if answer.status == HTTP_BAD_REQUEST:
        return ErrorClass(error=SourceUnavailable, advice="its reason is in the answer")
    return None
