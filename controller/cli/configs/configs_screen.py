"""What a catalogue looks like: its points with their evidence, and where each number comes from.

Pure. Invariant: every number that was not measured says how it came to be.
"""

from collections.abc import Collection, Iterator, Sequence

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.configs.configs_json import point_json
from wattmesh.controller.cli.configs.configs_worth import hull_lines, point_lines, switch_lines
from wattmesh.controller.cli.output import DIM, GOOD, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.policies.switch_time import SwitchRecord
from wattmesh.reconfig.catalogue import Catalogue, Evidence, OperatingPoint

COLUMNS = (
    Column(title="POINT"),
    Column(title="LAYOUT"),
    Column(title="GPUS", right=True),
    Column(title="CLOCK", right=True),
    Column(title="TOKENS/S", right=True),
    Column(title="POWER", right=True),
    Column(title="EVIDENCE"),
    Column(title="EQUIVALENCE"),
)
FACT = 16
"""Columns that a fact's name takes."""

LAYOUT = 1
"""The column that leaves the table on a narrow terminal: layouts can be long."""


def listing(catalogue: Catalogue, columns: int, stale: Collection[str] = ()) -> list[Text | str]:
    """One line per point, the reference marked; then what is worth running, and switches.

    `stale`: ids of the points whose proof no longer holds.
    """
    lines: list[Text | str] = [
        styled(
            (catalogue.job, STRONG),
            f" · {formats.count(catalogue.tokens_total)} tokens"
            f" · baseline {catalogue.reference} (*)",
        ),
        "",
        *_points(catalogue, columns, stale),
        *_sources(catalogue, columns),
        "",
        *hull_lines(catalogue, columns),
        "",
        *switch_lines(catalogue, columns),
    ]
    if catalogue.simulated:
        told = formats.wrapped(f"simulated: {', '.join(catalogue.simulated)}", columns)
        lines += ["", *(styled((each, WARN)) for each in told)]
    return lines


def details(
    catalogue: Catalogue,
    point: OperatingPoint,
    columns: int,
    records: Sequence[SwitchRecord] = (),
) -> list[Text | str]:
    """Everything about one point: a line per fact, when it is worth running, its switches.

    `records`: switches of a run of this catalogue.
    """
    facts = point_json(point)
    facts["layout"] = ", ".join(
        f"{key} {value}" for key, value in point.layout.to_dict().items() if value not in (1, False)
    )
    sources = facts.pop("sources")
    facts["probe"] = _probe(point)
    facts["fingerprint"] = ", ".join(f"{key} {value}" for key, value in found_on(point).items())
    lines: list[Text | str] = [styled((f"{catalogue.job} {point.id}", STRONG))]
    for key, value in facts.items():
        shown = quantities.UNKNOWN if value in (None, "") else value
        shown = quantities.figures(shown, 5) if isinstance(shown, float) else f"{shown}"
        source = f"  ({sources[key]})" if key in sources else ""
        first, *more = formats.wrapped(shown, columns - FACT) or [""]
        lines.append(styled((f"  {key:<{FACT - 2}}", DIM), first, (source, DIM)))
        lines += [" " * FACT + each for each in more]
    return [*lines, *point_lines(catalogue, point, columns, records)]


def found_on(point: OperatingPoint) -> dict[str, str]:
    """Return what a point was measured or proven on, as far as it is known."""
    return point.fingerprint.to_dict() if point.fingerprint else {}


def _probe(point: OperatingPoint) -> str:
    """Say how the probe moved when the point was proven; "" where that is not recorded."""
    found = point.probe
    if found is None:
        return ""
    noise = (
        f"; its noise in {found.computed_in} is {found.noise:.1e} ({found.orders} orders)"
        if found.noise is not None
        else ""
    )
    return f"moved by {found.moved:.1e} of {found.allowed:.1e} allowed{noise}"


def _points(catalogue: Catalogue, columns: int, stale: Collection[str]) -> Iterator[Text | str]:
    """Lay out the points; layouts in lines of their own where the table would be too wide."""
    rows = [_row(each, catalogue.reference, stale) for each in catalogue.points]
    laid = table(COLUMNS, rows)
    if laid[0].cell_len <= columns:
        yield from laid
        return
    rest = [column for at, column in enumerate(COLUMNS) if at != LAYOUT]
    yield from table(rest, [[*row[:LAYOUT], *row[LAYOUT + 1 :]] for row in rows])
    for layout in dict.fromkeys(str(point.layout) for point in catalogue.points):
        ids = ", ".join(each.id for each in catalogue.points if str(each.layout) == layout)
        yield from formats.wrapped(f"{ids}: {layout}", columns)


def _sources(catalogue: Catalogue, columns: int) -> Iterator[Text]:
    """Say how the numbers of points came to be; points with the same sources share a line."""
    told = {
        point.id: ", ".join(f"{key} {value}" for key, value in point.sources.items())
        for point in catalogue.points
        if point.sources
    }
    for source in dict.fromkeys(told.values()):
        ids = ", ".join(point for point, each in told.items() if each == source)
        yield from (styled((each, DIM)) for each in formats.wrapped(f"{ids}: {source}", columns))


def _row(point: OperatingPoint, reference: str, stale: Collection[str]) -> Sequence[str | Text]:
    usable = point.evidence is Evidence.VALIDATED and point.id not in stale
    evidence = "stale" if point.id in stale else str(point.evidence)
    return (
        Text(point.id + (" *" if point.id == reference else ""), style=STRONG),
        str(point.layout),
        str(point.gpus),
        quantities.UNKNOWN if point.clock_mhz is None else f"{point.clock_mhz} MHz",
        formats.rate(point.tokens_per_s),
        formats.watts(point.power_w),
        Text(evidence, style=GOOD if usable else WARN),
        str(point.equivalence),
    )
