"""The intensity of a mix of generation: grams of each fuel over the energy of all.

    intensity = sum(energy_f * factor_f) / sum(energy_f)

over everything that generates. Storage is left out: what it gives back was generated in other
hours. Less than zero (a plant's own use) counts as nothing generated. Pure.

Invariant: what is not known is never taken as zero. A fuel without a value or without a factor
widens the result to a range, and beyond `MATTERS` there is no result.
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
SNB and WNB are solar and wind with a battery of their own."""

STORAGE = frozenset({"BAT", "PS", "OES", "UES"})
"""Battery, pumped, other and unknown storage."""

HIGHEST_FACTOR_G_PER_KWH = 1100.0
"""No fuel emits more: what an unknown one is reckoned with at worst (lignite)."""

MATTERS = 0.02
"""Widest range of a result that is still given, as a share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What is known of one interval.

    Attributes:
        energy_mwh: by fuel code, as told; None: listed without a usable value.
        most_mwh: the most that each fuel was seen to generate in an interval; a fuel that is in
            here and not in `energy_mwh` is missing.
    """

    energy_mwh: Mapping[str, float | None]
    most_mwh: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What came of it.

    Attributes:
        g_per_kwh: the intensity; None: not to be had.
        low_g_per_kwh, high_g_per_kwh: what it can be at all, given what is not known.
        why: what is not known, as half a sentence; "" when all is.
    """

    g_per_kwh: float | None
    low_g_per_kwh: float = 0.0
    high_g_per_kwh: float = math.inf
    why: str = ""


def derived(mix: Mix, factors_g_per_kwh: Mapping[str, float]) -> Derived:
    """Derive the intensity of one interval.

    Args:
        mix: what was generated.
        factors_g_per_kwh: by fuel code; a storage that is named here counts as a fuel.
    """
    known, unknown = _sorted_out(mix, factors_g_per_kwh)
    words, total_mwh = " and ".join(each.why for each in unknown), sum(known.values())
    open_mwh = sum(each.most_mwh for each in unknown)
    if total_mwh <= 0 or not math.isfinite(open_mwh):
        return Derived(g_per_kwh=None, why=words or "no fuel generated anything")
    grams = sum(energy_mwh * factors_g_per_kwh[fuel] for fuel, energy_mwh in known.items())
    open_g = sum(each.most_mwh * each.factor_g_per_kwh for each in unknown)
    # Wider than the truth, and simple: all that is open emits, or it emits nothing and dilutes.
    low, high = grams / (total_mwh + open_mwh), (grams + open_g) / total_mwh
    value = grams / total_mwh
    if high - low > MATTERS * value:
        return Derived(g_per_kwh=None, low_g_per_kwh=low, high_g_per_kwh=high, why=words)
    return Derived(g_per_kwh=value, low_g_per_kwh=low, high_g_per_kwh=high, why=words)


class _Unknown(NamedTuple):
    """A fuel of which something is not known: the most it can be, and why."""

    most_mwh: float
    factor_g_per_kwh: float
    why: str


def _sorted_out(
    mix: Mix, factors_g_per_kwh: Mapping[str, float]
) -> tuple[dict[str, float], list[_Unknown]]:
    """Tell the fuels whose energy and factor are known, MWh, from the others."""
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
    """Say what is not known of a fuel."""
    if energy_mwh is not None:
        return f"fuel {fuel} ({energy_mwh:g} MWh) has no factor"
    if factor is None:
        return f"fuel {fuel} has neither a value nor a factor"
    return f"fuel {fuel} has no value" if listed else f"fuel {fuel} is missing"
