"""What a catalogue looks like: its points with their evidence, and where each number comes from.

Pure. Invariant: no number stands there without a word on how it came to be, unless it was measured.
"""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from wattmesh.controller.cli import words
from wattmesh.controller.cli.output import DIM, GOOD, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.reconfig.catalogue import Catalogue, Evidence, OperatingPoint

COLUMNS = (
    Column(title="POINT"),
    Column(title="LAYOUT"),
    Column(title="GPUS", right=True),
    Column(title="CLOCK", right=True),
    Column(title="TOKENS/S", right=True),
    Column(title="POWER", right=True),
    Column(title="J/TOKEN", right=True),
    Column(title="EVIDENCE"),
    Column(title="EQUIVALENCE"),
    Column(title="SOURCES"),
)


def as_json(catalogue: Catalogue) -> dict[str, Any]:
    """Give the keys of `configs list --json` and `configs show --json`."""
    return {
        "job": catalogue.job,
        "digest": catalogue.digest,
        "tokens_total": catalogue.tokens_total,
        "reference": catalogue.reference,
        "release": catalogue.release.value,
        "idle_power_w_per_gpu": catalogue.idle_power_w_per_gpu,
        "simulated": list(catalogue.simulated),
        "switch": {
            "layout_s": catalogue.switch.layout_s,
            "layout_energy_j": catalogue.switch.layout_energy_j,
            "clock_s": catalogue.switch.clock_s,
            "source": catalogue.switch.source,
        },
        "points": [point_json(each) for each in catalogue.points],
    }


def point_json(point: OperatingPoint) -> dict[str, Any]:
    """Give the keys of one point."""
    return {
        "id": point.id,
        "layout": point.layout.to_dict(),
        "layout_name": str(point.layout),
        "gpus": point.gpus,
        "clock_mhz": point.clock_mhz,
        "tokens_per_s": point.tokens_per_s,
        "power_w": point.power_w,
        "j_per_token": point.j_per_token,
        "memory_gib": point.memory_gib,
        "equivalence": point.equivalence.value,
        "evidence": point.evidence.value,
        "sources": dict(point.sources),
    }


def listing(catalogue: Catalogue) -> list[Text | str]:
    """One line per point, the reference marked."""
    switch = catalogue.switch
    head = styled(
        (catalogue.job, STRONG),
        f" · {words.count(catalogue.tokens_total)} tokens · baseline {catalogue.reference} · a "
        f"layout switch takes {words.duration(switch.layout_s)} and "
        f"{words.figures(switch.layout_energy_j)} J ({switch.source}) · unused GPUs are "
        f"{catalogue.release}, {words.watts(catalogue.idle_power_w_per_gpu)} each",
    )
    rows = [_row(each, each.id == catalogue.reference) for each in catalogue.points]
    lines: list[Text | str] = [head, *table(COLUMNS, rows)]
    if catalogue.simulated:
        lines += ["", styled((f"simulated: {', '.join(catalogue.simulated)}", WARN))]
    return lines


def details(catalogue: Catalogue, point: OperatingPoint) -> list[Text | str]:
    """Everything about one point, a line per fact."""
    facts = point_json(point)
    facts["layout"] = ", ".join(
        f"{key} {value}" for key, value in point.layout.to_dict().items() if value not in (1, False)
    )
    sources = facts.pop("sources")
    lines: list[Text | str] = [styled((f"{catalogue.job} {point.id}", STRONG))]
    for key, value in facts.items():
        shown = words.UNKNOWN if value in (None, "") else value
        shown = words.figures(shown, 5) if isinstance(shown, float) else shown
        source = f"  ({sources[key]})" if key in sources else ""
        lines.append(styled((f"  {key:<14}", DIM), f"{shown}", (source, DIM)))
    return lines


def _row(point: OperatingPoint, reference: bool) -> Sequence[str | Text]:
    """One point's cells."""
    sources = ", ".join(f"{key} {value}" for key, value in point.sources.items())
    usable = point.evidence is Evidence.VALIDATED
    return (
        Text(point.id + (" *" if reference else ""), style=STRONG),
        str(point.layout),
        str(point.gpus),
        words.UNKNOWN if point.clock_mhz is None else f"{point.clock_mhz} MHz",
        words.rate(point.tokens_per_s),
        words.watts(point.power_w),
        words.figures(point.j_per_token),
        Text(point.evidence, style=GOOD if usable else WARN),
        str(point.equivalence),
        Text(sources, style=DIM),
    )
