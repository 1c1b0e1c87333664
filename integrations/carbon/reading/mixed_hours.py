"""Hours of a generation mix to points of a series, for providers that publish no intensity.

Invariant: an hour with an incomplete mix is refused with a reason, unless what is missing is
negligible; a fuel that was told until lately and is not any more counts as missing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.reading.believed import PlausibilityFilter, refusal
from wattmesh.integrations.carbon.reading.fuel_mix import Mix, derived
from wattmesh.integrations.carbon.reading.told_hours import HOUR
from wattmesh.telemetry.carbon import CarbonBatch, CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality

REMEMBERED = timedelta(days=10)
"""A fuel is expected from this long before its first value until this long after its last one."""

Hours = Mapping[datetime, Mapping[str, float | None]]
"""Megawatt-hours by fuel, by the start of the hour; None: listed without a usable value."""


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


class MixedHours:
    """Derives the hours of one zone, and remembers which fuels it has."""

    def __init__(
        self, *, signal: Signal, factors_g_per_kwh: Mapping[str, float], model: str
    ) -> None:
        """Take the identity of the series.

        Args:
            signal: of the points.
            factors_g_per_kwh: by fuel code.
            model: name of what made the values.
        """
        self._signal = signal
        self._factors = factors_g_per_kwh
        self._model = model
        self._seen: dict[str, _Seen] = {}

    def batch(
        self,
        hours: Hours,
        refused: list[str],
        now: datetime,
        *,
        comes_within: timedelta = timedelta(),
    ) -> CarbonBatch:
        """Derive the hours that are over.

        Args:
            hours: of the mix.
            refused: sentences on what could not be read of them.
            now: aware.
            comes_within: until so long after its end an hour that is not whole is left out without
                a word: its types come one after the other.
        """
        for begin, energy_mwh in hours.items():
            for fuel, value in energy_mwh.items():
                if value is not None:
                    seen = self._seen.get(fuel) or _Seen(most_mwh=0.0, first=begin, last=begin)
                    self._seen[fuel] = seen.and_at(begin, value)
        judge = PlausibilityFilter()
        found = []
        for begin in sorted(hours):
            if begin + HOUR <= now:
                young = now < begin + HOUR + comes_within
                said = [] if young else refused
                found.append(self._point(begin, hours[begin], judge, now, said))
        points = tuple(each for each in found if each is not None)
        return CarbonBatch(points=points, refused=tuple(dict.fromkeys(refused)))

    def _point(
        self,
        begin: datetime,
        energy_mwh: Mapping[str, float | None],
        judge: PlausibilityFilter,
        now: datetime,
        refused: list[str],
    ) -> CarbonPoint | None:
        """Give an hour's intensity if it can be derived and is plausible; else say why not."""
        most_mwh = {
            fuel: seen.most_mwh for fuel, seen in self._seen.items() if seen.expected_at(begin)
        }
        made = derived(Mix(energy_mwh=energy_mwh, most_mwh=most_mwh), self._factors)
        if made.g_per_kwh is None:
            refused.append(refusal(begin, f"cannot be derived: {made.why}"))
            return None
        why = judge.fault(begin, made.g_per_kwh)
        if why:
            refused.append(refusal(begin, why))
            return None
        if made.why:
            refused.append(refusal(begin, f"counts as estimated: {made.why}, which matters little"))
        return CarbonPoint(
            signal=self._signal,
            start=begin,
            end=begin + HOUR,
            g_per_kwh=made.g_per_kwh,
            quality=Quality.ESTIMATED if made.why else Quality.MEASURED,
            # None of these providers says when an hour was published.
            issued_at=begin + HOUR,
            fetched_at=now,
            model=self._model,
        )


def checked_factors(own: Mapping[str, float], default: Mapping[str, float]) -> dict[str, float]:
    """Put a user's factors over the defaults.

    Raises:
        InputInvalid: one is below zero, or no number.
    """
    factors = {**default, **own}
    for fuel, factor in factors.items():
        if not (math.isfinite(factor) and factor >= 0):
            raise InputInvalid(f"carbon: the factor of {fuel} is {factor:g}; it must be >= 0")
    return factors


def model_name(name: str, own: Mapping[str, float]) -> str:
    """Name the model, with the user's own factors: a change of them is another model."""
    said = ",".join(f"{fuel}={factor:g}" for fuel, factor in sorted(own.items()))
    return f"{name} ({said})" if said else name
