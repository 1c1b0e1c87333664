"""What the daemon tells of the grid: signals, forecasts and their skill, as dataclasses.

Invariant: that of `wattmesh.controller.views`, whose `as_json` renders them.
"""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSlot:
    """Forecast intensity of [start, end)."""

    start: datetime
    end: datetime
    g_per_kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonLine:
    """One grid signal now.

    Attributes:
        signal: its full identity, `provider:zone:kind:factor:gas`.
        g_per_kwh: intensity of the present interval; None when it is not known.
        quality: of that intensity: measured, provisional, forecast, static; "" when unknown.
        age_s: seconds since the provider last answered; None when it never did.
        trouble: why wattmesh takes no carbon-motivated action; "" when the signal is usable.
        forecast: the slots ahead, the present one first. `low`: the slot with the lowest intensity.
        simulated: whether the signal is a replayed recording, not the grid of today.
        flags: of `g_per_kwh`: a forecast is an estimate, a recording is simulated.
        rung: what decisions rest on: issued, profile, static, none. `source`: who made the
            forecast. `issued_at`: when it was issued; for a profile, the end of its history.
        note: why the best rung is not in use; "" when it is.
        state: end of the newest poll: ok, failed, refused (a person must act); "" before the first.
            `detail`: what the provider answered.
        exogenous: what is forecast of wind, sun, load and weather beside it.
    """

    signal: str
    provider: str
    zone: str
    kind: str
    factor: str
    g_per_kwh: float | None
    quality: str
    age_s: float | None
    trouble: str
    forecast: tuple[ForecastSlot, ...] = ()
    low: ForecastSlot | None = None
    simulated: bool = False
    rung: str = ""
    source: str = ""
    issued_at: datetime | None = None
    note: str = ""
    state: str = ""
    detail: str = ""
    flags: tuple[str, ...] = ()
    exogenous: "tuple[ExogenousLine, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BandSlot:
    """Forecast intensity of [start, end) with its 10 % and 90 % quantiles.

    Attributes:
        low_g_per_kwh, high_g_per_kwh: the quantiles; None when they are not known.
        quality: forecast; for the present interval, the quality of what was observed of it.
    """

    start: datetime
    end: datetime
    g_per_kwh: float
    low_g_per_kwh: float | None
    high_g_per_kwh: float | None
    quality: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillLine:
    """Errors of one source's forecasts lately, up to `lead_h` hours ahead.

    Attributes:
        source: issued (the provider), exogenous (ours with wind, sun and weather), own,
            profile, day (24 h persistence), last (the last value).
        mae_g_per_kwh: mean absolute error. `persistence_mae_g_per_kwh`: that of 24 h persistence
            over the same hours. `last_mae_g_per_kwh`: that of the last value over them.
        count: number of recent outcomes behind these errors.
    """

    source: str
    lead_h: float
    mae_g_per_kwh: float
    persistence_mae_g_per_kwh: float
    last_mae_g_per_kwh: float
    count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExogenousLine:
    """One provider of forecasts of wind, sun, load or weather.

    Attributes:
        series: provider and zone.
        state: end of the newest poll: ok, failed, refused (a person must act); "" before the first.
            `detail`: what the provider answered.
        age_s: seconds since it last answered; None when it never did.
        reaches_at: end of the last hour that it tells; None when it told nothing. `issued_at`: from
            when the newest value is known.
        past_since: how far back its past has been asked for; None: not yet.
    """

    series: str
    state: str
    detail: str
    age_s: float | None
    reaches_at: datetime | None
    issued_at: datetime | None
    past_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastView:
    """`GET /v1/carbon/forecast`: what decisions rest on, and how far it can be trusted.

    Attributes:
        rung: issued | profile | static | none. `source`: who made the forecast.
        sentence: what that means for decisions.
        issued_at: when it was issued; for a profile, the end of the history that it is made from.
        model: what it was computed from. `slots`: without gaps, the present one first.
        flags: of the forecast slots; the present slot has its own quality.
        exogenous: what is forecast of wind, sun, load and weather beside it.
    """

    at: datetime
    signal: str
    rung: str
    source: str
    sentence: str
    issued_at: datetime | None
    interval_s: float
    model: str = ""
    slots: tuple[BandSlot, ...] = ()
    skill: tuple[SkillLine, ...] = ()
    flags: tuple[str, ...] = ()
    exogenous: tuple[ExogenousLine, ...] = ()
