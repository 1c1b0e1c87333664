"""What screens write beside quantities: flags, bars, times, lists. Pure.

Invariant: what is not known is shown as `-`, never as 0. A joule, a watt or a gram is written with
its flags.
"""

import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from wattmesh import quantities
from wattmesh.controller.marks import marked
from wattmesh.quantities import UNKNOWN

BARS = "▁▂▃▄▅▆▇█"


def grams(value: float | None, flags: Iterable[str] = ()) -> str:
    """Write a mass: 41 mg, 4.8 g, 3.41 t; flagged `4.8 g est+sim`."""
    return _marked(quantities.grams(value), flags)


def micrograms(value: int | None, flags: Iterable[str] = ()) -> str:
    """Write a mass that the ledger keeps in whole micrograms."""
    return grams(None if value is None else value / 1e6, flags)


def joules(energy_j: float, flags: Iterable[str] = ()) -> str:
    """Write an energy: 410 J, 90 kJ, 41.2 kWh, 12.3 MWh."""
    return _marked(quantities.joules(energy_j), flags)


def watts(value: float | None, flags: Iterable[str] = ()) -> str:
    """Write a power: 96 W, 41.2 kW."""
    return _marked(quantities.watts(value), flags)


def _marked(text: str, flags: Iterable[str]) -> str:
    """Write the flags after a quantity that is known."""
    return text if text == UNKNOWN else marked(text, flags)


def rate(per_s: float | None) -> str:
    """Write tokens per second: 950, 197 k, 2.3 M."""
    return quantities.count(per_s)


def count(value: int | None) -> str:
    """Write a whole number with thousands separators: 181,200."""
    return UNKNOWN if value is None else f"{value:,}"


def percent(share: float | None, digits: int = 0) -> str:
    """Write a share of 1 as per cent."""
    return UNKNOWN if share is None else f"{share * 100:.{digits}f} %"


def intensity(g_per_kwh: float | None) -> str:
    """Write a carbon intensity without its unit: 212."""
    return quantities.short(g_per_kwh)


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
"""How many of the runs that share a sentence are named."""


def together(said: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Give each sentence once, with the names of all runs that it is about; "" is no sentence.

    Sentences that differ only in the run's own settings key count as one.
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
