"""Quantities as people read them: 41.2 kW, 4.8 g, 5.2 h. The one place that rounds. Pure.

Three significant figures are enough for a sentence and a screen; `--json` has the rest. What is not
known is `-`, never 0.
"""

UNKNOWN = "-"

_Units = tuple[tuple[float, str], ...]

_SECONDS: _Units = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_GRAMS: _Units = ((1e6, "t"), (1e3, "kg"), (1.0, "g"), (1e-3, "mg"), (1e-6, "µg"))
_WATTS: _Units = ((1e6, "MW"), (1e3, "kW"), (1.0, "W"))
_BYTES: _Units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_COUNTS: _Units = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_JOULES = ((3.6e9, 3.6e9, "MWh"), (3.6e5, 3.6e6, "kWh"), (1e3, 1e3, "kJ"), (0.0, 1.0, "J"))
"""From so many joules on, joules of a unit, and its name."""

LEAST_G = 5e-7
"""Grams below half a microgram, which the ledgers do not hold, are 0 g."""


def figures(value: float, digits: int = 3) -> str:
    """Write `value` with `digits` significant figures and no exponent: 0.805, 41.2, 131."""
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    plain = f"{float(text):.12f}".rstrip("0").rstrip(".")
    return "0" if plain in ("-0", "") else plain


def grams(value_g: float | None) -> str:
    """Write a mass: 5 µg, 41 mg, 4.8 g, 1.1 kg, 3.41 t."""
    if value_g is not None and abs(value_g) < LEAST_G:
        return "0 g"
    return _scaled(value_g, _GRAMS)


def watts(value_w: float | None) -> str:
    """Write a power: 96 W, 41.2 kW, 1.2 MW."""
    return _scaled(value_w, _WATTS)


def size(nbytes: float | None) -> str:
    """Write a number of bytes: 512 B, 1.32 GB."""
    return _scaled(nbytes, _BYTES)


def count(value: float | None) -> str:
    """Write how many: 950, 197 k, 2.3 M."""
    return _scaled(value, _COUNTS).rstrip()


def joules(energy_j: float | None) -> str:
    """Write an energy: 410 J, 90 kJ, 41.2 kWh, 12.3 MWh."""
    if energy_j is None:
        return UNKNOWN
    _, unit_j, unit = next(each for each in _JOULES if abs(energy_j) >= each[0])
    text = f"{energy_j:.0f}" if unit == "J" else figures(energy_j / unit_j)
    return f"{text} {unit}"


def duration(seconds: float | None) -> str:
    """Write a duration in its largest fitting unit: 38 ms, 4 s, 6 min, 5.2 h, 3.1 d."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return f"-{duration(-seconds)}" if seconds <= -5e-4 else "0 s"
    for unit_s, unit in _SECONDS:
        if seconds >= unit_s * 0.9995:
            amount = seconds / unit_s
            return f"{amount:.0f} ms" if unit == "ms" else f"{short(amount)} {unit}"
    return "0 s" if seconds < 5e-4 else "1 ms"


def intensity(g_per_kwh: float | None) -> str:
    """Write a carbon intensity: 212 g/kWh."""
    return UNKNOWN if g_per_kwh is None else f"{short(g_per_kwh)} g/kWh"


def short(amount: float | None) -> str:
    """Write a number whose unit stands elsewhere: whole from 10 on, with one decimal below."""
    if amount is None:
        return UNKNOWN
    return f"{amount:.0f}" if abs(amount) >= 9.95 else f"{amount:.1f}".removesuffix(".0")


def _scaled(value: float | None, units: _Units) -> str:
    """Write `value` in the largest unit that leaves at least 1 before the point."""
    if value is None:
        return UNKNOWN
    unit_size, unit = next((each for each in units if abs(value) >= each[0] * 0.9995), units[-1])
    return f"{figures(value / unit_size)} {unit}"
