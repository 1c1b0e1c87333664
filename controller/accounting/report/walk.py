"""One pass over the slots of a month: further prices of the same joules, added up by subject.

Invariant: a slot is read once and not kept, so a month of many runs needs little memory; its joules
count at most once in each scenario and signal.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from wattmesh.controller.accounting.report.prices import Contract, Intensities, covered, scenario_of
from wattmesh.controller.accounting.report.views import MARKET, NOT_COVERED
from wattmesh.controller.journal.energy.by_slot import SlotSum
from wattmesh.controller.journal.energy.spent import UNPRICED
from wattmesh.policies.accounting.baseline import price_ug
from wattmesh.telemetry.carbon import signal_quality
from wattmesh.telemetry.energy.unobserved import UNOBSERVED
from wattmesh.telemetry.slots import local_day

OF_RUNS = ("run", UNOBSERVED)
"""Lines of the ledger that are a run's own: its joules, and its unobserved time."""

Subject = tuple[str, str]
"""("run", its id) or ("line", its name)."""

Price = tuple[str, str]
"""Scenario, and signal or label."""


def subject_of(run: str, line: str) -> Subject:
    """Give the subject of a ledger row in a report."""
    return ("run", run) if run and line in OF_RUNS else ("line", line)


@dataclass(slots=True)
class Day:
    """One day of the site: joules, and location-based grams by signal with their qualities."""

    energy_mj: int = 0
    carbon: Counter[str] = field(default_factory=Counter)
    words: dict[str, set[str]] = field(default_factory=dict)
    energy_words: set[str] = field(default_factory=set)

    def take(self, slot: SlotSum) -> None:
        """Add a slot."""
        self.energy_mj += slot.energy_mj
        self.energy_words.add(slot.energy_quality)
        if slot.quality != UNPRICED:
            self.carbon[slot.signal] += slot.carbon_ug
            words = (slot.quality, slot.energy_quality, signal_quality(slot.signal))
            self.words.setdefault(slot.signal, set()).update(words)


@dataclass(slots=True)
class ReportTotals:
    """What was added up.

    Attributes:
        energy_mj: of all slots. `facility`: millijoules times PUE in thousandths, by subject.
        energy, carbon: millijoules and micrograms that have a price, by price and subject.
        blind_s: by price, seconds of slots that have joules and no price.
        words: by price and subject, qualities of joules and intensities of its grams.
        days: by the moment a day of the site begins.
        models: by fallback, what its values were multiplied by.
    """

    energy_mj: int = 0
    facility: Counter[Subject] = field(default_factory=Counter)
    energy: Counter[tuple[Price, Subject]] = field(default_factory=Counter)
    carbon: Counter[tuple[Price, Subject]] = field(default_factory=Counter)
    blind_s: dict[Price, float] = field(default_factory=dict)
    words: dict[tuple[Price, Subject], set[str]] = field(default_factory=dict)
    days: dict[datetime, Day] = field(default_factory=dict)
    models: dict[str, set[str]] = field(default_factory=dict)
    blind_at: dict[Price, datetime] = field(default_factory=dict)


def walked(
    slots: Iterable[SlotSum],
    further: Sequence[Intensities],
    contracts: Sequence[Contract],
    timezone: str,
) -> ReportTotals:
    """Price and add up slots in time order.

    Args:
        slots: of the actual scenario.
        further: other signals to price them in.
        contracts: of the site.
        timezone: of its days.
    """
    walk = ReportTotals()
    for slot in slots:
        walk.energy_mj += slot.energy_mj
        walk.facility[subject_of(slot.run, slot.line)] += slot.energy_mj * slot.pue_milli
        day = local_day(slot.slot_start, timezone)[0]
        walk.days.setdefault(day, Day()).take(slot)
        if slot.stand_in:
            walk.models.setdefault(slot.stand_in, set()).add(slot.model)
        for prices in further:
            _price(walk, prices, slot)
        if contracts:
            _cover(walk, contracts, slot)
    return walk


def _price(walk: ReportTotals, prices: Intensities, slot: SlotSum) -> None:
    price = (scenario_of(prices.signal), str(prices.signal))
    g_milli = prices.g_milli(slot.slot_start, slot.slot_end)
    if g_milli is None:
        _add_unpriced_time(walk, price, slot)
        return
    place = (price, subject_of(slot.run, slot.line))
    walk.energy[place] += slot.energy_mj
    walk.carbon[place] += price_ug(slot.energy_mj, g_milli, slot.pue_milli)
    words = {slot.energy_quality, signal_quality(str(prices.signal))}
    walk.words.setdefault(place, set()).update(words | prices.qualities(slot.slot_start))


def _cover(walk: ReportTotals, contracts: Sequence[Contract], slot: SlotSum) -> None:
    found = covered(contracts, slot.slot_start, slot.energy_mj, slot.pue_milli)
    for each in found:
        place = ((MARKET, each.label), subject_of(slot.run, slot.line))
        walk.energy[place] += each.energy_mj
        walk.carbon[place] += each.carbon_ug
        walk.words.setdefault(place, set()).add(slot.energy_quality)
    if sum(each.energy_mj for each in found) < slot.energy_mj:
        _add_unpriced_time(walk, (MARKET, NOT_COVERED), slot)


def _add_unpriced_time(walk: ReportTotals, price: Price, slot: SlotSum) -> None:
    """Add the time of a slot without a price, once for all subjects."""
    if slot.energy_mj and walk.blind_at.get(price) != slot.slot_start:
        walk.blind_at[price] = slot.slot_start
        length_s = (slot.slot_end - slot.slot_start).total_seconds()
        walk.blind_s[price] = walk.blind_s.get(price, 0.0) + length_s
