"""The report of one run: what it spent and saved, and how that came about over its time.

Invariant: whatever the run's length, it tells at most `MOST_STRETCHES` stretches of time; what was
not read or has no price is None in them, never 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from wattmesh.controller.accounting.budget import RunBudget
from wattmesh.controller.journal.energy.run_slots import RunSlot
from wattmesh.controller.views import RunLine
from wattmesh.telemetry.readings import flags_of

MOST_STRETCHES = 400
MICRO = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStretch:
    """Some neighbouring slots of a run, added up.

    Attributes:
        energy_j: None where nothing was read. `unobserved_s`: GPU time that nobody read.
        carbon_g: of its joules that have a price; None where none has one, and in a run whose grams
            are in several signals.
        intensity_g_per_kwh: mean of what they were priced with.
        flags: estimated, provisional, simulated: those that any of its joules or grams is.
    """

    start: datetime
    end: datetime
    energy_j: float | None
    unobserved_s: float
    carbon_g: float | None
    intensity_g_per_kwh: float | None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """`GET /v1/runs/{run}/report`: one run, location-based.

    Attributes:
        line: the run as `status` shows it. `spent`: what it spent and saved, as `budget` shows it.
        boundary: what its joules and grams cover.
        observed: whether the run is only measured and cannot be moved.
        stretches: its time in at most 400 parts, oldest first; empty once retention has summed up
            its slots.
        switches: the newest ones, newest first.
    """

    at: datetime
    line: RunLine
    spent: RunBudget
    boundary: str
    registered_at: datetime
    finished_at: datetime | None
    finish_reason: str
    observed: bool
    stretches: tuple[RunStretch, ...] = ()
    switches: tuple[dict[str, Any], ...] = ()


@dataclass(slots=True)
class _Sums:
    """One stretch while it is added up."""

    start: datetime
    end: datetime
    energy_mj: int | None = None
    unobserved_ms: int = 0
    carbon_ug: int | None = None
    intensities: list[float] = field(default_factory=list)
    qualities: set[str] = field(default_factory=set)

    def add(self, slot: RunSlot) -> None:
        """Add what is known of a slot."""
        self.start, self.end = min(self.start, slot.start), max(self.end, slot.end)
        self.energy_mj = _plus(self.energy_mj, slot.energy_mj)
        self.unobserved_ms += slot.unobserved_ms
        self.carbon_ug = _plus(self.carbon_ug, slot.carbon_ug)
        if slot.g_milli_per_kwh is not None and slot.carbon_ug is not None:
            self.intensities.append(slot.g_milli_per_kwh / 1000)
        self.qualities.update(slot.qualities)


def stretches(slots: Iterable[RunSlot], *, one_signal: bool) -> tuple[RunStretch, ...]:
    """Add slots up to at most `MOST_STRETCHES` of equal length.

    Args:
        slots: of a run, in any order.
        one_signal: whether its grams are all in one signal; if not, no stretch tells grams.
    """
    known: dict[datetime, _Sums] = {}
    for slot in slots:
        known.setdefault(slot.start, _Sums(slot.start, slot.end)).add(slot)
    found = [known[start] for start in sorted(known)]
    if not found:
        return ()
    first, last = found[0].start, max(each.end for each in found)
    length = max((last - first) / MOST_STRETCHES, timedelta(seconds=1))
    joined: dict[int, list[_Sums]] = {}
    for each in found:
        joined.setdefault(min((each.start - first) // length, MOST_STRETCHES - 1), []).append(each)
    return tuple(_stretch(group, one_signal) for group in joined.values())


def _stretch(group: list[_Sums], one_signal: bool) -> RunStretch:
    energy, carbon = None, None
    for each in group:
        energy = _plus(energy, each.energy_mj)
        carbon = _plus(carbon, each.carbon_ug)
    prices = [price for each in group for price in each.intensities]
    return RunStretch(
        start=group[0].start,
        end=max(each.end for each in group),
        energy_j=None if energy is None else energy / 1000,
        unobserved_s=sum(each.unobserved_ms for each in group) / 1000,
        carbon_g=None if carbon is None or not one_signal else carbon / MICRO,
        intensity_g_per_kwh=sum(prices) / len(prices) if prices and one_signal else None,
        flags=flags_of(*(word for each in group for word in each.qualities)),
    )


def _plus(one: int | None, other: int | None) -> int | None:
    """Add what is known; None while neither is."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
