"""Numbers, times and grams as people read them. Pure.

Invariant: what is not known is shown as `-`, never as 0; three significant figures are enough for
a screen, `--json` has the rest. A joule, a watt or a gram is written with its flags.
"""

import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from wattmesh.controller.marks import marked

UNKNOWN = "-"
BARS = "▁▂▃▄▅▆▇█"

_SECONDS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_GRAMS = ((1e6, "t"), (1e3, "kg"), (1.0, "g"), (1e-3, "mg"))
_JOULES = ((3.6e9, 3.6e9, "MWh"), (3.6e5, 3.6e6, "kWh"), (1e3, 1e3, "kJ"), (0.0, 1.0, "J"))
"""From so many joules on, joules of a unit, and its name."""
_WATTS = ((1e6, "MW"), (1e3, "kW"), (1.0, "W"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def figures(value: float, digits: int = 3) -> str:
    """Write `value` with `digits` significant figures and no exponent: 0.805, 41.2, 131."""
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    if "e" in text:
        text = f"{float(text):f}".rstrip("0").rstrip(".")
    return text


def duration(seconds: float | None) -> str:
    """Write a duration in its largest fitting unit: 38 ms, 4 s, 6 min, 5.2 h, 3.1 d."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return f"-{duration(-seconds)}"
    for size, unit in _SECONDS:
        if seconds >= size * 0.9995:
            return f"{_short(seconds / size, unit)} {unit}"
    return "0 s" if seconds < 5e-4 else f"{figures(seconds * 1e3, 1)} ms"


def _short(amount: float, unit: str) -> str:
    """Whole numbers from 10 on and for milliseconds; one decimal below."""
    if amount >= 9.95 or unit == "ms":
        return f"{amount:.0f}"
    return f"{amount:.1f}".removesuffix(".0")


def grams(value: float | None, flags: Iterable[str] = ()) -> str:
    """Write a mass: 41 mg, 4.8 g, 0.41 kg is 410 g, 3.41 t; flagged `4.8 g est+sim`."""
    return _marked(_scaled(value, _GRAMS), flags)


def micrograms(value: int | None, flags: Iterable[str] = ()) -> str:
    """Write a mass that the ledger keeps in whole micrograms."""
    return grams(None if value is None else value / 1e6, flags)


def joules(energy_j: float, flags: Iterable[str] = ()) -> str:
    """Write an energy: 410 J, 90 kJ, 41.2 kWh, 12.3 MWh."""
    _, size, unit = next(each for each in _JOULES if abs(energy_j) >= each[0])
    text = f"{energy_j:.0f}" if unit == "J" else figures(energy_j / size)
    return marked(f"{text} {unit}", flags)


def watts(value: float | None, flags: Iterable[str] = ()) -> str:
    """Write a power: 96 W, 41.2 kW."""
    return _marked(_scaled(value, _WATTS), flags)


def _marked(text: str, flags: Iterable[str]) -> str:
    """Write the flags behind what is known."""
    return text if text == UNKNOWN else marked(text, flags)


def size(nbytes: float | None) -> str:
    """Write a number of bytes: 512 B, 1.32 GB."""
    return _scaled(nbytes, _BYTES)


def _scaled(value: float | None, units: Sequence[tuple[float, str]]) -> str:
    """Write `value` in the largest unit that leaves at least 1 before the point."""
    if value is None:
        return UNKNOWN
    size, unit = next(
        (each for each in units if abs(value) >= each[0] * 0.9995), units[-1] if value else units[0]
    )
    if not value:
        size, unit = next(each for each in units if each[0] == 1.0)
    return f"{figures(value / size)} {unit}"


def rate(per_s: float | None) -> str:
    """Write tokens per second: 950, 197.1 k, 2.3 M."""
    if per_s is None:
        return UNKNOWN
    for size, unit in _COUNTS:
        if abs(per_s) >= size:
            return f"{figures(per_s / size, 4)} {unit}"
    return f"{per_s:.0f}"


def count(value: int | None) -> str:
    """Write a whole number with thousands apart: 181,200."""
    return UNKNOWN if value is None else f"{value:,}"


def percent(share: float | None, digits: int = 0) -> str:
    """Write a share of 1 as per cent."""
    return UNKNOWN if share is None else f"{share * 100:.{digits}f} %"


def intensity(g_per_kwh: float | None) -> str:
    """Write a carbon intensity without its unit: 212."""
    return UNKNOWN if g_per_kwh is None else f"{g_per_kwh:.0f}"


def moment(text: str | None) -> datetime | None:
    """Read a time of the API."""
    return None if text is None else datetime.fromisoformat(text)


def clock(text: str | None, *, seconds: bool = False) -> str:
    """Write a time of the API as 14:02 or 14:02:10 (UTC)."""
    at = moment(text)
    if at is None:
        return UNKNOWN
    return at.astimezone(UTC).strftime("%H:%M:%S" if seconds else "%H:%M")


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Draw `values` as bars from their lowest to their highest, averaged down to `width` bars."""
    if not values:
        return ""
    size = min(width, len(values))
    edges = [round(index * len(values) / size) for index in range(size + 1)]
    means = [sum(values[first:last]) / (last - first) for first, last in pairwise(edges)]
    low, high = min(means), max(means)
    if high - low < 1e-9:
        return BARS[2] * size
    return "".join(BARS[round((mean - low) / (high - low) * (len(BARS) - 1))] for mean in means)


def bar(share: float, width: int = 20) -> str:
    """Draw a share of 1 as a filled bar of `width` cells, by eighths."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    partial = " ▏▎▍▌▋▊▉"[rest] if rest else ""
    return ("█" * full + partial).ljust(width, "░")


def plural(amount: int, one: str) -> str:
    """Write `3 runs`, `1 run`."""
    return f"{amount} {one}{'' if amount == 1 else 's'}"


NAMED = 5
"""Runs that share a sentence are named up to so many."""


def together(said: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Give each sentence once, behind the names of all that it is said of; "" is none.

    Sentences are one where they differ by the run's own key in the settings.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for name, text in said:
        if text:
            found.setdefault(text.replace(f"runs.{name}.", "runs.NAME."), []).append((name, text))
    return [
        (_named([name for name, _ in each]), common if len(each) > 1 else each[0][1])
        for common, each in found.items()
    ]


def _named(names: Sequence[str]) -> str:
    """Write `a, b, c`, or `a, b, c, d, e and 55 more`."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def wrapped(sentence: str, columns: int, hang: int = 0) -> list[str]:
    """Break a sentence into lines that fit, never within a word; all but the first are indented."""
    return textwrap.wrap(
        sentence,
        max(20, columns),
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
