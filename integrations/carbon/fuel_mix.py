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
    known: dict[str, float] = {}
    open_g, open_mwh, why = 0.0, 0.0, []
    for fuel in sorted({*mix.energy_mwh, *mix.most_mwh}):
        factor = factors_g_per_kwh.get(fuel)
        if fuel in STORAGE and factor is None:
            continue
        energy_mwh = mix.energy_mwh.get(fuel)
        if energy_mwh is not None and factor is not None:
            known[fuel] = max(0.0, energy_mwh)
            continue
        most_mwh = mix.most_mwh.get(fuel, math.inf) if energy_mwh is None else max(0.0, energy_mwh)
        if fuel not in mix.energy_mwh and most_mwh == 0:
            continue
        why.append(_unknown(fuel, energy_mwh, factor, listed=fuel in mix.energy_mwh))
        open_mwh += most_mwh
        open_g += most_mwh * (HIGHEST_FACTOR_G_PER_KWH if factor is None else factor)
    words, total_mwh = " and ".join(why), sum(known.values())
    if total_mwh <= 0 or not math.isfinite(open_mwh):
        return Derived(g_per_kwh=None, why=words or "no fuel generated anything")
    grams = sum(energy_mwh * factors_g_per_kwh[fuel] for fuel, energy_mwh in known.items())
    # Wider than the truth, and simple: all that is open emits, or it emits nothing and dilutes.
    low, high = grams / (total_mwh + open_mwh), (grams + open_g) / total_mwh
    value = grams / total_mwh
    if high - low > MATTERS * value:
        return Derived(g_per_kwh=None, low_g_per_kwh=low, high_g_per_kwh=high, why=words)
    return Derived(g_per_kwh=value, low_g_per_kwh=low, high_g_per_kwh=high, why=words)


def _unknown(fuel: str, energy_mwh: float | None, factor: float | None, *, listed: bool) -> str:
    """Say what is not known of a fuel."""
    if energy_mwh is not None:
        return f"fuel {fuel} ({energy_mwh:g} MWh) has no factor"
    if factor is None:
        return f"fuel {fuel} has neither a value nor a factor"
    return f"fuel {fuel} has no value" if listed else f"fuel {fuel} is missing"
