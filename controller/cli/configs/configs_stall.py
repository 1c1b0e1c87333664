"""How long switches in place stall a run, and how that is known: for people. Pure.

Invariant: a prediction is never shown without its band, nor without how many switches it rests on.
"""

from collections.abc import Iterator, Sequence

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.configs.configs_ways import Ways
from wattmesh.controller.cli.output import STRONG, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.policies.switch_time import Stall, StallBasis

COLUMNS = (
    Column(title="SWITCH"),
    Column(title="STALL", right=True),
    Column(title="HOW IT IS KNOWN"),
)
LEAST_SHOWN = 0.02
"""Phases below this share of a stall are left out of its sentence."""


def stall_sentence(stall: Stall) -> str:
    """Say how the seconds of a switch are known."""
    band = ""
    if stall.low_s is not None and stall.high_s is not None:
        band = f", {quantities.duration(stall.low_s)} to {quantities.duration(stall.high_s)}"
    times = "once" if stall.times == 1 else f"{stall.times} times"
    if stall.basis is StallBasis.MEASURED:
        return f"measured {times} by the {stall.source}{band}"
    if stall.basis is StallBasis.PREDICTED:
        size = quantities.size(stall.state_bytes)
        return (
            f"predicted for {size} of state from {stall.times} switches of the {stall.source}{band}"
        )
    return "stated in the catalogue, not measured"


def stall_lines(found: Sequence[Ways], here: str, columns: int) -> Iterator[Text | str]:
    """Say of every pair with this point how long its switch stalls the run, and how it is known."""
    rows = []
    predicted: Stall | None = None
    for each in found:
        for origin, target, way in (
            (here, each.other, each.leaving),
            (each.other, here, each.back),
        ):
            if way is None:
                continue
            if way.stall.predicted is not None and predicted is None:
                predicted = way.stall
            seconds = quantities.duration(way.stall.seconds) if way.stall.seconds else "none"
            rows.append((f"{origin} to {target}", seconds, stall_sentence(way.stall)))
    yield styled(("stalls", STRONG), ", from the boundary to the first step at normal pace")
    yield from table(COLUMNS, rows)
    if predicted is not None:
        yield from formats.wrapped(_parts(predicted), columns)


def _parts(stall: Stall) -> str:
    """Say what the first predicted stall is made of."""
    assert stall.predicted is not None
    parts = [
        f"{name} {quantities.duration(seconds)}"
        for name, seconds in stall.predicted.phases
        if seconds >= LEAST_SHOWN * stall.seconds
    ]
    return f"The first one predicted: {', '.join(parts)}."
