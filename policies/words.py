"""Numbers, times and points as the sentences of decisions write them. Pure.

Invariant: every value that goes in is finite, every text that comes out is one line.
"""

from datetime import UTC, datetime, timedelta

from wattmesh.reconfig.catalogue import OperatingPoint
from wattmesh.telemetry.readings import J_PER_KWH

_SECONDS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_GRAMS = ((1e6, "t"), (1e3, "kg"), (1.0, "g"), (1e-3, "mg"), (1e-6, "µg"))
_WATTS = ((1e6, "MW"), (1e3, "kW"), (1.0, "W"))
_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def figures(value: float, digits: int = 3) -> str:
    """Write `value` with `digits` significant figures and without an exponent: 0.805, 41.2, 131."""
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    plain = f"{float(text):.12f}".rstrip("0").rstrip(".")
    return "0" if plain in ("-0", "") else plain


def _scaled(value: float, units: tuple[tuple[float, str], ...], digits: int) -> str:
    """Write `value` in the largest unit that leaves at least 1 before the point."""
    size, unit = next((each for each in units if abs(value) >= each[0] * 0.9995), units[-1])
    return f"{figures(value / size, digits)} {unit}".rstrip()


def grams(value_g: float) -> str:
    """Write a mass: 41 mg, 4.8 g, 1.1 kg, 3.41 t; below a microgram it is 0 g."""
    return _scaled(value_g, _GRAMS, 3) if abs(value_g) >= 5e-7 else "0 g"


def duration(seconds: float) -> str:
    """Write a duration in its largest fitting unit: 38 ms, 4 s, 6 min, 5.2 h, 3.1 d."""
    if abs(seconds) < 5e-4:
        return "0 s"
    return _scaled(seconds, _SECONDS, 2 if abs(seconds) < 86_400 * 100 else 3)


def count(value: float) -> str:
    """Write how many: 950, 197 k, 2.3 M."""
    return _scaled(value, _COUNTS, 3)


def watts(value_w: float) -> str:
    """Write a power: 700 W, 5.25 kW, 1.2 MW."""
    return _scaled(value_w, _WATTS, 4)


def intensity(g_per_kwh: float) -> str:
    """Write a carbon intensity with its unit: 212 g/kWh."""
    text = f"{g_per_kwh:.0f}" if abs(g_per_kwh) >= 9.95 else figures(g_per_kwh, 2)
    return f"{text} g/kWh"


def moment(at: datetime, now: datetime) -> str:
    """Write a time as a person near `now` needs it, in UTC: with seconds, as HH:MM, with a date."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    away = abs(at - now)
    if away < timedelta(minutes=10):
        return f"{at:%H:%M:%S} UTC"
    if at.date() == now.date():
        return f"{at:%H:%M} UTC"
    if away < timedelta(days=6):
        return f"{at:%a %H:%M} UTC"
    return f"{at:%Y-%m-%d %H:%M} UTC"


def point(which: OperatingPoint) -> str:
    """Name a point so that nobody has to look it up: `B (tp2 on 2 GPUs)`."""
    clock = f" @{which.clock_mhz} MHz" if which.clock_mhz is not None else ""
    return f"{which.id} ({which.layout}{clock} on {which.gpus} GPU{'s'[: which.gpus != 1]})"


def clause(text: str) -> str:
    """Make somebody else's sentence fit inside ours: one line, no period at its end."""
    return " ".join(text.split()).rstrip(". ")


def g_per_kwh(g_per_joule: float) -> float:
    """Convert an intensity from grams per joule."""
    return g_per_joule * J_PER_KWH
