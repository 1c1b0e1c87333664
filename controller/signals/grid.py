"""The grid signals as the settings name them: each opened once, whatever it is used for.

Invariant: one series has one provider and one poller, shared by every role and run that reads it.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.journal.carbon.exogenous import series_of
from wattmesh.controller.loop_facts import Signals
from wattmesh.controller.settings.carbon import CarbonSourceSection
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.signals.slot_prices import Fallback, Tariff
from wattmesh.integrations.carbon.exogenous.opened import exogenous_provider
from wattmesh.integrations.carbon.sources import provider
from wattmesh.policies.decision import Rung
from wattmesh.policies.ladder import DAY_S, OLDEST
from wattmesh.telemetry.carbon import Provider
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.exogenous import ExogenousProvider

ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)
UNPRICED_SLOT_S = 1800.0
"""Length of ledger slots when there is no accounting signal to give one."""

LATE_INTERVALS = 2
"""A slot that is so many intervals later than usual is missing, and a fallback is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExogenousSource:
    """A provider of exogenous series, as the settings name it."""

    name: str
    zone: str
    provider: ExogenousProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class GridProviders:
    """The signals with their providers; None or nothing where the settings name none.

    Attributes:
        exogenous: what is forecast beside the decision signal.
    """

    accounting: Provider | None = None
    decision: Provider | None = None
    fallbacks: tuple[tuple[Provider, float], ...] = ()
    reports: tuple[Provider, ...] = ()
    exogenous: tuple[ExogenousSource, ...] = ()
    signals: Signals = field(default_factory=Signals)
    timezone: str = "UTC"

    @property
    def slots(self) -> SlotGrid:
        """Where ledger slots end: at the accounting signal's borders, else at half hours.

        They also end at the site's midnights, so that no row lies in two days, months or years.
        """
        if self.accounting is None:
            return SlotGrid(origin=ORIGIN, interval_s=UNPRICED_SLOT_S, timezone=self.timezone)
        series = self.accounting.series
        return SlotGrid(origin=series.origin, interval_s=series.interval_s, timezone=self.timezone)

    @property
    def tariff(self) -> Tariff | None:
        """How slots are priced; None without an accounting signal."""
        if self.accounting is None:
            return None
        series = self.accounting.series
        return Tariff(
            signal=self.accounting.signal,
            series=series,
            fallbacks=tuple(
                Fallback(signal=each.signal, scale=scale) for each, scale in self.fallbacks
            ),
            late_s=series.lag_s + LATE_INTERVALS * series.interval_s,
        )

    @property
    def providers(self) -> tuple[Provider, ...]:
        """All providers to be polled, each series once."""
        named = (
            self.accounting,
            self.decision,
            *(each for each, _ in self.fallbacks),
            *self.reports,
        )
        known: dict[str, Provider] = {}
        for each in named:
            if each is not None:
                known.setdefault(str(each.signal), each)
        return tuple(known.values())

    @property
    def ahead(self) -> frozenset[str]:
        """The signals that need a forecast: for decisions, and to price slots provisionally.

        Fallbacks and signals of reports use observed values only.
        """
        wanted = (self.accounting, self.decision)
        return frozenset(str(each.signal) for each in wanted if each is not None)


def grid(settings: Settings, now: datetime) -> GridProviders:
    """Open every source that the settings name.

    Raises:
        InputInvalid: a source cannot be used (it was fine when the settings were checked).
    """
    carbon, timezone = settings.carbon, settings.site.timezone
    if carbon is None:
        return GridProviders(timezone=timezone)
    accounting = provider(carbon.accounting.source(), now)
    first = _facts(accounting, carbon.accounting)
    decision, second = accounting, first
    if carbon.decision is not None and carbon.decision != carbon.accounting:
        decision = provider(carbon.decision.source(), now)
        second = _facts(decision, carbon.decision)
    reports = tuple((provider(each.source(), now), each) for each in carbon.report)
    fallbacks = tuple((provider(each.source(), now), each) for each in carbon.accounting_fallback)
    return GridProviders(
        accounting=accounting,
        decision=decision,
        fallbacks=tuple((source, section.scale) for source, section in fallbacks),
        reports=tuple(each for each, _ in reports),
        exogenous=tuple(
            ExogenousSource(
                name=each.provider, zone=each.zone, provider=exogenous_provider(each.settings())
            )
            for each in carbon.exogenous
        ),
        signals=Signals(
            decision=second,
            accounting=first,
            reports=tuple(_facts(source, section) for source, section in reports),
            fallbacks=tuple(_facts(source, section) for source, section in fallbacks),
            exogenous=tuple(series_of(each.provider, each.zone) for each in carbon.exogenous),
        ),
        timezone=timezone,
    )


def _facts(source: Provider, section: CarbonSourceSection) -> SignalFacts:
    """Give what the cycle must know of a signal.

    Where the settings do not say when a value is stale, the age limit of the ladder's profile rung
    applies.
    """
    series = source.series
    oldest_s = OLDEST[Rung.PROFILE].total_seconds() * series.day_s / DAY_S
    return SignalFacts(
        signal=source.signal,
        interval_s=series.interval_s,
        stale_after_s=section.stale_after_s or oldest_s,
        day_s=series.day_s,
        cadence_s=series.cadence_s,
        lag_s=series.lag_s,
    )
