"""Derives the intensity of a generation mix: grams of all fuels over the energy of all. Pure.

    intensity = sum(energy_f * factor_f) / sum(energy_f)

over all generation. Storage is excluded, because its energy was generated in other hours. A
negative value (a plant's own use) counts as zero.

Invariant: an unknown value never counts as zero. A fuel without a value or factor widens the result
to a range, and a range wider than `MATTERS` gives no result.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

DIRECT_G_PER_KWH: Mapping[str, float] = {
    "COL": 760.0,
    "NG": 370.0,
    "OIL": 406.0,
    "OTH": 575.0,
    "UNK": 575.0,
    "NUC": 0.0,
    "WAT": 0.0,
    "SUN": 0.0,
    "WND": 0.0,
    "GEO": 0.0,
    "SNB": 0.0,
    "WNB": 0.0,
}
"""CO2 from burning by EIA-930 fuel code, g/kWh: the direct factors of DACF (Maji, Sitaraman and
Shenoy, e-Energy 2022; carbonfirst/DACF, src/carbonIntensityCalculator.py, `carbonRateDirect`).
SNB and WNB are solar and wind with an attached battery."""

STORAGE = frozenset({"BAT", "PS", "OES", "UES"})
"""Battery, pumped, other and unknown storage."""

HIGHEST_FACTOR_G_PER_KWH = 1100.0
"""Upper bound of the factor of an unknown fuel (lignite)."""

MATTERS = 0.02
"""Widest range with a result, relative to the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The generation of one interval.

    Attributes:
        energy_mwh: by fuel code; None: listed without a usable value.
        most_mwh: the highest generation of each fuel in an interval so far; a fuel that is here
            and not in `energy_mwh` is missing.
    """

    energy_mwh: Mapping[str, float | None]
    most_mwh: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedIntensity:
    """The result for one interval.

    Attributes:
        g_per_kwh: the intensity; None: not known well enough.
        low_g_per_kwh, high_g_per_kwh: bounds of the intensity, given the unknown values.
        why: the unknown values, as half a sentence; "" when there are none.
    """

    g_per_kwh: float | None
    low_g_per_kwh: float = 0.0
    high_g_per_kwh: float = math.inf
    why: str = ""


def derived(mix: Mix, factors_g_per_kwh: Mapping[str, float]) -> DerivedIntensity:
    """Derive the intensity of one interval.

    Args:
        mix: the generation.
        factors_g_per_kwh: by fuel code; a storage listed here counts as a fuel.
    """
    known, unknown = _sorted_out(mix, factors_g_per_kwh)
    words, total_mwh = " and ".join(each.why for each in unknown), sum(known.values())
    open_mwh = sum(each.most_mwh for each in unknown)
    if total_mwh <= 0 or not math.isfinite(open_mwh):
        return DerivedIntensity(g_per_kwh=None, why=words or "no fuel generated anything")
    grams = sum(energy_mwh * factors_g_per_kwh[fuel] for fuel, energy_mwh in known.items())
    open_g = sum(each.most_mwh * each.factor_g_per_kwh for each in unknown)
    # Conservative bounds: the unknown energy adds all of its grams, or only energy.
    low, high = grams / (total_mwh + open_mwh), (grams + open_g) / total_mwh
    value = grams / total_mwh
    if high - low > MATTERS * value:
        return DerivedIntensity(g_per_kwh=None, low_g_per_kwh=low, high_g_per_kwh=high, why=words)
    return DerivedIntensity(g_per_kwh=value, low_g_per_kwh=low, high_g_per_kwh=high, why=words)


class _Unknown(NamedTuple):
    """A fuel with an unknown value or factor: its upper bounds, and the reason."""

    most_mwh: float
    factor_g_per_kwh: float
    why: str


def _sorted_out(
    mix: Mix, factors_g_per_kwh: Mapping[str, float]
) -> tuple[dict[str, float], list[_Unknown]]:
    """Separate fuels with known energy (MWh) and factor from the others."""
    known: dict[str, float] = {}
    unknown: list[_Unknown] = []
    for fuel in sorted({*mix.energy_mwh, *mix.most_mwh}):
        energy_mwh, factor = mix.energy_mwh.get(fuel), factors_g_per_kwh.get(fuel)
        listed = fuel in mix.energy_mwh
        if fuel in STORAGE and factor is None:
            continue
        if energy_mwh is not None and factor is not None:
            known[fuel] = max(0.0, energy_mwh)
            continue
        most_mwh = mix.most_mwh.get(fuel, math.inf) if energy_mwh is None else max(0.0, energy_mwh)
        if listed or most_mwh > 0:
            worst = HIGHEST_FACTOR_G_PER_KWH if factor is None else factor
            why = _why(fuel, energy_mwh, factor, listed=listed)
            unknown.append(_Unknown(most_mwh, worst, why))
    return known, unknown


def _why(fuel: str, energy_mwh: float | None, factor: float | None, *, listed: bool) -> str:
    if energy_mwh is not None:
        return f"fuel {fuel} ({energy_mwh:g} MWh) has no factor"
    if factor is None:
        return f"fuel {fuel} has neither a value nor a factor"
    return f"fuel {fuel} has no value" if listed else f"fuel {fuel} is missing"
