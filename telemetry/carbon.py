"""Carbon intensity of the grid: points, series with their identity, the protocol of providers.

Grams per kilowatt-hour, aware UTC times, half-open intervals. Invariant: series of different
identity are never mixed or compared; an unknown value has no point, and is never zero.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from wattmesh.telemetry.readings import Quality

REPLAYED = ("csv",)
"""Providers that replay a recording as if it happened now."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Signal:
    """Identity of a carbon series; series of different identity are never mixed or compared."""

    provider: str
    zone: str
    kind: str = "average"
    factor: str = "direct"
    gas: str = "CO2"

    def __str__(self) -> str:
        """Return the form in rows and on screens: `neso:GB:average:direct:CO2`."""
        return ":".join((self.provider, self.zone, self.kind, self.factor, self.gas))

    @classmethod
    def parse(cls, text: str) -> "Signal":
        """Parse the form of `str`."""
        provider, zone, kind, factor, gas = text.split(":")
        return cls(provider=provider, zone=zone, kind=kind, factor=factor, gas=gas)


def signal_quality(signal: str) -> str:
    """Return the flag that a signal's values carry: a replayed one is simulated."""
    return str(Quality.SIMULATED) if signal.partition(":")[0] in REPLAYED else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonPoint:
    """Intensity of one half-open interval [start, end), aware UTC.

    Attributes:
        g_per_kwh: grams per kilowatt-hour, finite, > 0 (a marginal rate may be 0); of a forecast
            the value planned with.
        quality: measured, estimated (by the provider), provisional (a stand-in until the interval
            is measured), static, or forecast.
        issued_at, fetched_at: when the provider published it, and when we fetched it.
        model: the provider's method or model date, for a value that was not measured.
        low_g_per_kwh, high_g_per_kwh: of a forecast, its 10 % and 90 % quantiles; None: not known.
    """

    signal: Signal
    start: datetime
    end: datetime
    g_per_kwh: float
    quality: Quality
    issued_at: datetime
    fetched_at: datetime
    model: str = ""
    low_g_per_kwh: float | None = None
    high_g_per_kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonBatch:
    """The result of one request: points, oldest first, and why each refused value was."""

    points: tuple[CarbonPoint, ...]
    refused: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The intervals of a provider's series, and when values appear; known without a request.

    Attributes:
        interval_s: length of one interval; ledger slots end at these borders.
        origin: a moment at which an interval starts; with `interval_s` it fixes every border.
        cadence_s: how often something new can appear; polls follow this, not the control loop.
        lag_s: how long after its end an interval is usually observed.
        observed: it has observed values, not only forecasts; without them nothing is priced by it.
        forecast_s: how far its forecast reaches; 0: it has none.
        trailing: how far back every poll asks again, for late and revised values.
        deep_trailing: how far back one poll per day asks again.
        day_s: length of the daily cycle; shorter in a recording that is played faster.
    """

    interval_s: float
    origin: datetime
    cadence_s: float
    lag_s: float = 0.0
    observed: bool = True
    forecast_s: float = 0.0
    trailing: timedelta = timedelta(hours=48)
    deep_trailing: timedelta = timedelta(days=10)
    day_s: float = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The endpoints that this key may use in this zone, as the provider says.

    Attributes:
        latest, history, forecast: whether the endpoint accepts this key.
        history_since: the oldest interval; None: not known.
        models: names or dates of the models behind the values; a change shifts the series.
        detail: a sentence for the user; "" for none.
    """

    latest: bool
    history: bool
    forecast: bool
    history_since: datetime | None = None
    models: tuple[str, ...] = ()
    detail: str = ""


class Provider(Protocol):
    """One provider's series in one zone. `now` is an argument: replay and tests own the clock.

    Every call may raise a `SourceUnavailable` (try later: `Transient`, `RateLimited`, `NoData`) or
    a `SourceRefused` (the user must correct something: `AuthFailed`, `NotEntitled`, `UnknownZone`,
    `ZoneMismatch`, `SandboxData`).
    """

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        ...

    @property
    def series(self) -> Series:
        """Its intervals, and when values appear."""
        ...

    def capabilities(self, now: datetime) -> Capabilities:
        """Query which endpoints this key may use."""
        ...

    def latest(self, now: datetime) -> CarbonBatch:
        """Fetch the newest known intervals."""
        ...

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the observed intervals that begin in [start, end), in as few requests as allowed.

        An interval that has not ended or is not observed yet may come as `provisional`.
        """
        ...

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Fetch the newest forecast from the current interval on; empty where none exists."""
        ...
