"""Exogenous series: wind, sun, load and weather, which drive a grid, and its day-ahead prices.

Every series has one unit, whatever its provider sends. Invariant: a value carries when it was
issued, and is visible to nobody before; an unknown value has no point, and is never zero; series of
different zones or providers are never mixed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol


class ExogenousKind(StrEnum):
    """What an exogenous series tells of a zone."""

    WIND = "wind"
    SOLAR = "solar"
    LOAD = "load"
    WIND_SPEED = "wind_speed"
    RADIATION = "radiation"
    TEMPERATURE = "temperature"
    DEW_POINT = "dew_point"
    PRECIPITATION = "precipitation"
    PRICE = "price"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFacts:
    """The unit of a kind, and what can be true of it on Earth: anything else is refused."""

    unit: str
    least: float
    most: float


PRICE_UNIT = "EUR/MWh"
"""Prices in other currencies are refused: a series never mixes two."""

MOST_MW = 2_000_000.0
"""More than any grid draws or makes."""

KINDS: Mapping[ExogenousKind, KindFacts] = {
    ExogenousKind.WIND: KindFacts(unit="MW", least=0.0, most=MOST_MW),
    ExogenousKind.SOLAR: KindFacts(unit="MW", least=0.0, most=MOST_MW),
    ExogenousKind.LOAD: KindFacts(unit="MW", least=1.0, most=MOST_MW),
    ExogenousKind.WIND_SPEED: KindFacts(unit="m/s", least=0.0, most=120.0),
    ExogenousKind.RADIATION: KindFacts(unit="W/m2", least=0.0, most=1500.0),
    ExogenousKind.TEMPERATURE: KindFacts(unit="K", least=170.0, most=340.0),
    ExogenousKind.DEW_POINT: KindFacts(unit="K", least=150.0, most=320.0),
    ExogenousKind.PRECIPITATION: KindFacts(unit="mm", least=0.0, most=400.0),
    # Below zero where power is given away at a loss; the auctions' own limits are narrower.
    ExogenousKind.PRICE: KindFacts(unit=PRICE_UNIT, least=-10_000.0, most=100_000.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExogenousPoint:
    """One value of one half-open interval [start, end), aware UTC, in the unit of its kind.

    Attributes:
        issued_at: from when it was known; where a provider does not say, the latest moment at which
            it can have been issued, and never later than it was fetched.
    """

    provider: str
    zone: str
    kind: ExogenousKind
    start: datetime
    end: datetime
    value: float
    issued_at: datetime
    fetched_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ExogenousBatch:
    """The result of one request: points, oldest first, and why each refused value was."""

    points: tuple[ExogenousPoint, ...]
    refused: tuple[str, ...] = field(default=())


class ExogenousProvider(Protocol):
    """One provider's exogenous series of one zone. `now` is an argument, as for carbon.

    Every call may raise a `SourceUnavailable` or a `SourceRefused`.
    """

    @property
    def kinds(self) -> tuple[ExogenousKind, ...]:
        """What it serves."""
        ...

    @property
    def cadence(self) -> timedelta:
        """How often something new can appear."""
        ...

    def forecast(self, *, now: datetime) -> ExogenousBatch:
        """Fetch what is forecast of the hours from now on."""
        ...

    def past_forecasts(self, start: datetime, end: datetime, *, now: datetime) -> ExogenousBatch:
        """Fetch what had been forecast of [start, end): what a forecast learns from."""
        ...


def implausible(kind: ExogenousKind, value: float) -> str:
    """Say why a value cannot be true; "" when it can."""
    facts = KINDS[kind]
    if facts.least <= value <= facts.most:  # NaN fails too
        return ""
    return f"{kind} of {value:g} {facts.unit} is outside {facts.least:g} to {facts.most:g}"
