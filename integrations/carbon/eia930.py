"""The average intensity of a US balancing authority, derived from its generation: EIA-930.

EIA (public domain, free key) publishes megawatt-hours by fuel and hour; `fuel_mix.py` derives the
intensity. Imports are not included. Hours are UTC; most authorities label an hour by its end, the
others need `label`. Values are about a day late.

Invariant: an hour with an incomplete mix is refused with a reason, unless the missing fuel is
negligible.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.errors import AuthFailed, InputInvalid, NoData, Transient, ZoneMismatch
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.believed import PlausibilityFilter, refusal
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.fuel_mix import DIRECT_G_PER_KWH, Mix, derived
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality

BASE_URL = "https://api.eia.gov/v2"
PATH = "/electricity/rto/fuel-type-data/data/"
HOUR = timedelta(hours=1)
ORIGIN = datetime(2019, 1, 1, tzinfo=UTC)
LAG = timedelta(hours=24)
TRAILING = timedelta(hours=72)
LABELS = ("ending", "starting")
REMEMBERED = timedelta(days=10)
"""A fuel is expected from this long before its first value until this long after its last one."""
ROWS = 5000
"""Most rows of one answer in JSON."""
MOST_PAGES = 40
"""About a year and a half of hours with fourteen fuels."""
MODEL = "EIA-930 mix"

_FORM = "%Y-%m-%dT%H"
HTTP_FORBIDDEN = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One fuel so far: its most in an hour, and the first and the last hour with it."""

    most_mwh: float
    first: datetime
    last: datetime

    def and_at(self, begin: datetime, energy_mwh: float) -> "_Seen":
        return _Seen(
            most_mwh=max(self.most_mwh, energy_mwh),
            first=min(self.first, begin),
            last=max(self.last, begin),
        )

    def expected_at(self, begin: datetime) -> bool:
        """Tell whether an hour should have the fuel: plants open, and close for good."""
        return self.first - REMEMBERED <= begin <= self.last + REMEMBERED


class Eia930:
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
        factors = {**DIRECT_G_PER_KWH, **(factors_g_per_kwh or {})}
        for fuel, factor in factors.items():
            if not (math.isfinite(factor) and factor >= 0):
                raise InputInvalid(f"carbon: the factor of {fuel} is {factor:g}; it must be >= 0")
        self._zone = zone
        self._credentials = Credentials.parameter("api_key", key)
        self._factors = factors
        self._own = dict(factors_g_per_kwh or {})
        self._shift = HOUR if label == "ending" else timedelta()
        self._http = http or JsonHttp(base_url)
        # History of each fuel, to notice when one disappears.
        self._seen: dict[str, _Seen] = {}

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        return Signal(provider="eia930", zone=self._zone)

    @property
    def series(self) -> Series:
        """Hours of UTC, told about a day late, without a forecast."""
        return Series(
            interval_s=HOUR.total_seconds(),
            origin=ORIGIN,
            cadence_s=HOUR.total_seconds(),
            lag_s=LAG.total_seconds(),
            trailing=TRAILING,
        )

    @property
    def breaker_state(self) -> str:
        """What happens to a poll now: closed, open or half-open."""
        return self._http.breaker_state

    def capabilities(self, now: datetime) -> Capabilities:
        """Say what is served; asking shows whether the key and the authority are known.

        Raises:
            SourceUnavailable: nothing usable came. SourceRefused: the key or the zone is wrong.
        """
        batch = self.latest(now)
        newest = max((point.end for point in batch.points), default=None)
        told = f"The newest hour ends at {newest:%Y-%m-%d %H:%M} UTC." if newest else ""
        return Capabilities(
            latest=True, history=True, forecast=False, models=(self._model,), detail=told
        )

    def latest(self, now: datetime) -> CarbonBatch:
        """Fetch the hours of the last three days.

        Raises:
            SourceUnavailable: nothing usable came. SourceRefused: the key or the zone is wrong.
        """
        return self.history(now - TRAILING, now, now=now)

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
                if energy_mwh is not None:
                    seen = self._seen.get(fuel) or _Seen(most_mwh=0.0, first=begin, last=begin)
                    self._seen[fuel] = seen.and_at(begin, energy_mwh)
        judge = PlausibilityFilter()
        points = [
            point
            for begin in sorted(hours)
            for point in self._point(begin, hours[begin], judge, now, refused)
        ]
        return CarbonBatch(points=tuple(points), refused=tuple(dict.fromkeys(refused)))

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Return nothing: EIA forecasts demand, not the mix."""
        return CarbonBatch(points=())

    @property
    def _model(self) -> str:
        """The model's name, with the user's own factors."""
        own = ",".join(f"{fuel}={factor:g}" for fuel, factor in sorted(self._own.items()))
        return f"{MODEL} ({own})" if own else MODEL

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

    def _point(
        self,
        begin: datetime,
        energy_mwh: Mapping[str, float | None],
        judge: PlausibilityFilter,
        now: datetime,
        refused: list[str],
    ) -> Iterator[CarbonPoint]:
        """Yield an hour's intensity if it can be derived and is plausible.

        Else the reason is added to `refused`.
        """
        end = begin + HOUR
        if end > now:
            return
        most_mwh = {
            fuel: seen.most_mwh for fuel, seen in self._seen.items() if seen.expected_at(begin)
        }
        made = derived(Mix(energy_mwh=energy_mwh, most_mwh=most_mwh), self._factors)
        if made.g_per_kwh is None:
            refused.append(refusal(begin, f"cannot be derived: {made.why}"))
            return
        why = judge.fault(begin, made.g_per_kwh)
        if why:
            refused.append(refusal(begin, why))
            return
        if made.why:
            refused.append(refusal(begin, f"counts as estimated: {made.why}, which matters little"))
        yield CarbonPoint(
            signal=self.signal,
            start=begin,
            end=end,
            g_per_kwh=made.g_per_kwh,
            quality=Quality.ESTIMATED if made.why else Quality.MEASURED,
            # EIA does not publish the time of publication.
            issued_at=end,
            fetched_at=now,
            model=self._model,
        )


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
