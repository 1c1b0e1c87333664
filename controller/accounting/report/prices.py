"""Further prices of a slot, for reports: other signals of the settings, and contracts. Pure.

Invariant: only values that are measured, static or estimated by their provider price anything; a
contract covers the share of each slot that the settings give it, and the rest stays unpriced.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from wattmesh.policies.accounting.baseline import price_ug
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.energy.ledger import share
from wattmesh.telemetry.readings import Quality

FINAL = (Quality.MEASURED, Quality.ESTIMATED, Quality.STATIC)
MILLION = 1_000_000
MICROSECOND = timedelta(microseconds=1)


class Contract(Protocol):
    """A market-based factor of the settings."""

    @property
    def label(self) -> str:
        """What it is: the contract, the certificates, or the residual mix."""
        ...

    @property
    def g_per_kwh(self) -> float:
        """Grams for each kilowatt-hour that it covers."""
        ...

    @property
    def share(self) -> float:
        """Share of all energy that it covers, above 0 to 1."""
        ...

    @property
    def starts(self) -> datetime:
        """From when on."""
        ...

    @property
    def ends(self) -> datetime:
        """Until when, half-open."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """What one contract covers of some joules."""

    label: str
    energy_mj: int
    carbon_ug: int


class Intensities:
    """The intensity of any slot in one signal: the mean over time of the intervals that cover it.

    A slot that final values do not cover from end to end has none.
    """

    def __init__(self, signal: Signal, points: Sequence[CarbonPoint]) -> None:
        """Take the best point of every interval."""
        self.signal = signal
        self._points = sorted(
            (each for each in points if each.quality in FINAL), key=lambda each: each.start
        )
        self._starts = [each.start for each in self._points]
        self._known: dict[datetime, tuple[int | None, frozenset[str]]] = {}

    def g_milli(self, start: datetime, end: datetime) -> int | None:
        """Give milligrams per kilowatt-hour, rounded; None where a part of the slot has none."""
        if start not in self._known:
            self._known[start] = self._mean(start, end)
        return self._known[start][0]

    def qualities(self, start: datetime) -> frozenset[str]:
        """Give the qualities of what a slot was priced with."""
        return self._known[start][1] if start in self._known else frozenset()

    def _mean(self, start: datetime, end: datetime) -> tuple[int | None, frozenset[str]]:
        """Average over [start, end)."""
        covered, weighted, words = timedelta(), 0.0, set[str]()
        for point in self._points[max(0, bisect_right(self._starts, start) - 1) :]:
            if point.start >= end:
                break
            inside = min(point.end, end) - max(point.start, start)
            if inside > timedelta():
                covered += inside
                weighted += point.g_per_kwh * (inside / MICROSECOND)
                words.add(str(point.quality))
        if covered != end - start:
            return None, frozenset()
        return round(weighted / (covered / MICROSECOND) * 1000), frozenset(words)


def scenario_of(signal: Signal) -> str:
    """Give the scenario of a further signal in the report."""
    if signal.kind == "marginal":
        return "marginal"
    return "lifecycle" if signal.factor == "lifecycle" else "further"


def covered(
    contracts: Sequence[Contract], at: datetime, energy_mj: int, pue_milli: int
) -> tuple[Covered, ...]:
    """Price the joules of a slot that begins at `at` by the contracts that hold then.

    Each covers its share, to the millijoule; what none covers is in none of them.
    """
    held = [each for each in contracts if each.starts <= at < each.ends]
    weights = [round(each.share * MILLION) for each in held]
    parts = share(energy_mj, [*weights, max(0, MILLION - sum(weights))])
    return tuple(
        Covered(
            label=each.label,
            energy_mj=part_mj,
            carbon_ug=price_ug(part_mj, round(each.g_per_kwh * 1000), pue_milli),
        )
        for each, part_mj in zip(held, parts[:-1], strict=True)
    )
