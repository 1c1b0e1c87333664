"""Write beside a joule, a watt or a gram why it is not just measured: `4.8 g est+sim`. Pure.

Three flags (wattmesh.telemetry.readings): estimated, provisional, simulated. A figure may carry
several; none replaces another. Invariant: screens write flags by this module and no other way. A
limit that a person set has none: it is exact.
"""

import re
from collections.abc import Iterable

from wattmesh.reconfig.catalogue import Catalogue, Evidence, OperatingPoint
from wattmesh.telemetry.carbon import signal_quality
from wattmesh.telemetry.readings import FLAGS, Quality, flags_of

SHORT = {Quality.ESTIMATED: "est", Quality.PROVISIONAL: "prov", Quality.SIMULATED: "sim"}
"""How a screen writes each flag."""

QUANTITY = re.compile(
    r"(?<![\w.])(?<!of )(?<!above )-?\d[\d,]*(?:\.\d+)? (?:[kmµ]?g|t|[kM]?W|[kM]?J|[kM]Wh)\b(?!/)"
)
"""A mass, a power or an energy in a sentence; not one after `of` or `above`, which is a limit."""

MODELLED = ("power_w", "tokens_per_s")
"""Numbers of a catalogue from which joules and grams are computed."""


def mark(flags: Iterable[str]) -> str:
    """Write flags: `est+sim`; "" for none."""
    known = set(flags)
    return "+".join(SHORT[each] for each in FLAGS if str(each) in known)


def marked(quantity: str, flags: Iterable[str]) -> str:
    """Write a quantity with its flags: `4.8 g est+sim`."""
    return f"{quantity} {mark(flags)}".rstrip()


def sentence(text: str, flags: Iterable[str]) -> str:
    """Write the flags behind every mass, power and energy of a sentence."""
    said = mark(flags)
    return QUANTITY.sub(lambda found: f"{found[0]} {said}", text) if said else text


def legend(text: str) -> str:
    """Say what the marks in a text stand for; "" where there is none."""
    found = {each for group in re.findall(r"(?<=\s)[a-z+]+\b", text) for each in group.split("+")}
    return " · ".join(f"{SHORT[each]}: {each}" for each in FLAGS if SHORT[each] in found)


def point_flags(catalogue: Catalogue, point: OperatingPoint) -> tuple[str, ...]:
    """Give the flags of a point's joules per token, as its catalogue says."""
    modelled = any(each in catalogue.simulated for each in MODELLED)
    sources = {point.sources.get(each, "") for each in MODELLED}
    guessed = point.evidence in (Evidence.ASSUMED, Evidence.PREDICTED) or "assumed" in sources
    return flags_of(
        *sources,
        str(Quality.SIMULATED) if modelled else "",
        str(Quality.ESTIMATED) if guessed else "",
    )


def expected_flags(catalogue: Catalogue | None, signal: str) -> tuple[str, ...]:
    """Give the flags of expected grams: always estimated, because they lie in the future."""
    points = catalogue.points if catalogue else ()
    of_points = (flag for each in points if catalogue for flag in point_flags(catalogue, each))
    return flags_of(str(Quality.ESTIMATED), signal_quality(signal), *of_points)
