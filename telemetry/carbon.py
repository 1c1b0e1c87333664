"""Carbon facts: series of grid intensity, each with its identity, and who can give them.

Grams per kilowatt-hour, times aware UTC, intervals half-open. Invariant: series of different
identity are never mixed or compared; a value that is not known is no point, never zero.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from wattmesh.telemetry.readings import Quality

REPLAYED = ("csv",)
"""Providers that play a recording as if it happened now."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Signal:
    """Identity of a carbon series; series of different identity are never mixed or compared."""

    provider: str
    zone: str
    kind: str = "average"
    factor: str = "direct"
    gas: str = "CO2"

    def __str__(self) -> str:
        """Give the form stored in rows and shown on screens: `neso:GB:average:direct:CO2`."""
        return ":".join((self.provider, self.zone, self.kind, self.factor, self.gas))

    @classmethod
    def parse(cls, text: str) -> "Signal":
        """Read back what `str` wrote."""
        provider, zone, kind, factor, gas = text.split(":")
        return cls(provider=provider, zone=zone, kind=kind, factor=factor, gas=gas)


def signal_quality(signal: str) -> str:
    """Give what a signal is beside observed: a replayed one is not the grid of today."""
    return str(Quality.SIMULATED) if signal.partition(":")[0] in REPLAYED else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonPoint:
    """Intensity of one half-open interval [start, end), aware UTC.

    Attributes:
        g_per_kwh: grams per kilowatt-hour, finite, > 0 (a marginal rate may be 0); of a forecast
            the value planned with.
        quality: measured, estimated (by the provider), provisional (a stand-in until the interval
            is measured), static, or forecast.
        issued_at: when the provider said so; `fetched_at`: when we heard it.
        model: what made a value that was not measured: the provider's method or model date.
        low_g_per_kwh, high_g_per_kwh: of a forecast, its 10 % and 90 % quantiles; None: not told.
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
    """What one request brought: points, oldest first, and values refused, each with why."""

    points: tuple[CarbonPoint, ...]
    refused: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """How a provider's series is cut and when its values come; known without asking anybody.

    Attributes:
        interval_s: length of one interval; ledger slots end at these borders.
        origin: a moment at which an interval starts; with `interval_s` it fixes every border.
        cadence_s: how often something new can appear; polls follow this, not the control loop.
        lag_s: how long after its end an interval is usually observed.
        observed: it tells what was, not only what is expected; without that it books nothing.
        forecast_s: how far its forecast reaches; 0: it has none.
        trailing: so much is asked for again at every poll, for late and revised values.
        deep_trailing: so much is asked for again once a day.
        day_s: length of the day that the values follow; shorter in a recording played compressed.
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
    """What may be asked of a provider with this key, in this zone, as the provider says it.

    Attributes:
        latest, history, forecast: whether the endpoint answers this key.
        history_since: the oldest interval; None: not told.
        models: names or dates of the models behind the values; a change re-bases the series.
        detail: a sentence for people; "" when there is nothing to add.
    """

    latest: bool
    history: bool
    forecast: bool
    history_since: datetime | None = None
    models: tuple[str, ...] = ()
    detail: str = ""


class Provider(Protocol):
    """One provider's series in one zone. `now` is an argument: replay and tests own the clock.

    Every call may raise a `SourceUnavailable` (wait: `Transient`, `RateLimited`, `NoData`) or a
    `SourceRefused` (a person must mend something: `AuthFailed`, `NotEntitled`, `UnknownZone`,
    `ZoneMismatch`, `SandboxData`).
    """

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        ...

    @property
    def series(self) -> Series:
        """How it is cut and when its values come."""
        ...

    def capabilities(self, now: datetime) -> Capabilities:
        """Ask what this key may ask for."""
        ...

    def latest(self, now: datetime) -> CarbonBatch:
        """Fetch the newest intervals that are known."""
        ...

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the observed intervals that begin in [start, end), in requests as long as allowed.

        An interval that is not over or not observed yet may come as `provisional`.
        """
        ...

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Fetch the newest forecast, from the running interval on; empty where none is offered."""
        ...
