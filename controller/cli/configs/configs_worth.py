"""What a catalogue says beyond its points: what is worth running when, and what switching takes.

Pure. Invariant: a switch's figures stand beside their source, and joules that were not stated are
marked.
"""

from collections.abc import Iterator, Sequence

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.configs.configs_stall import stall_lines
from wattmesh.controller.cli.configs.configs_ways import Basis, Way, ways
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.policies.break_even import (
    BreakEven,
    break_evens,
    embodied_sentence,
    gpus_held,
    hull_sentence,
)
from wattmesh.policies.switch_time import SwitchRecord
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint, Release

HULL = (
    Column(title="POINT"),
    Column(title="CHARGED", right=True),
    Column(title="J/TOKEN", right=True),
    Column(title="ONE MORE", right=True),
    Column(title="CLEANER BY", right=True),
    Column(title="IN ALL", right=True),
    Column(title="SLOWING PAYS", right=True),
)
NOT_STATED = "The making of the hardware is left out: job.embodied_g_per_gpu_hour is not stated."
OWN, PREDICTED, ESTIMATED, NEVER = "*", "^", "~", "never"


def hull_lines(catalogue: Catalogue, columns: int) -> list[Text | str]:
    """Say which points are worth running, and from which ratio of intensities on."""
    found = break_evens(catalogue)
    useful = [each for each in found if each.vertex]
    held = gpus_held(catalogue)
    title = f"worth running, slowest first (a job of {formats.plural(held, 'GPU')})"
    lines: list[Text | str] = [styled((title, STRONG))]
    lines += table(HULL, [_hull_row(each) for each in useful])
    if len(useful) > 1:
        lines += formats.wrapped(
            "ONE MORE: joules for each token more than at the point before. A plan goes up to a "
            "point in hours CLEANER BY that factor than those in which the point before begins to "
            "pay.",
            columns,
        )
    for each in found:
        if each.vertex is None:
            lines += formats.wrapped(each.why_not, columns)
    if not catalogue.embodied_g_per_gpu_hour:
        lines += [styled((each, DIM)) for each in formats.wrapped(NOT_STATED, columns)]
    elif len(useful) > 1:
        lines += formats.wrapped(
            "SLOWING PAYS: in grids cleaner than that, slowing down to a point from the one below "
            "it here is wrong: the joules saved weigh less than the longer use of the hardware.",
            columns,
        )
    return lines


def _hull_row(found: BreakEven) -> tuple[str | Text, ...]:
    vertex = found.vertex
    assert vertex is not None
    first = "-" if found.in_all is None else "first"
    return (
        Text(found.point.id, style=STRONG),
        formats.watts(vertex.power_w),
        quantities.figures(vertex.power_w / vertex.tokens_per_s),
        f"{quantities.figures(vertex.marginal_j_per_token)} J"
        if found.in_all
        else quantities.UNKNOWN,
        first if found.ratio is None else f"{quantities.figures(found.ratio)}x",
        quantities.UNKNOWN if found.in_all is None else f"{quantities.figures(found.in_all)}x",
        _pays_above(found),
    )


def _pays_above(found: BreakEven) -> str:
    if found.slowing_down is None:
        return quantities.UNKNOWN
    if found.slowing_down.g_per_kwh is None:
        return "to shift work"
    if not found.slowing_down.g_per_kwh:
        return "always"
    return f"above {quantities.figures(found.slowing_down.g_per_kwh, 2)} g/kWh"


def switch_lines(catalogue: Catalogue, columns: int) -> list[Text | str]:
    """Say what switches take, pairs listed separately, and what becomes of unused GPUs."""
    switch = catalogue.switch
    lines: list[Text | str] = [_switch_head(catalogue)]
    joules = "joules not stated"
    if switch.layout_energy_j:
        joules = formats.joules(switch.layout_energy_j)
    rest = "any other" if switch.pairs else "any"
    rows = [(f"{rest} layout", f"{quantities.duration(switch.layout_s)}, {joules}")]
    rows.append((f"{rest} clock", _at_once(switch.clock_s)))
    rows += [
        (f"{each.origin} to {each.target}", f"{_at_once(each.seconds)}, {_joules(each.energy_j)}")
        for each in switch.pairs
    ]
    width = max(len(name) for name, _ in rows)
    lines += [f"  {name:<{width}}  {what}" for name, what in rows]
    return [*lines, *formats.wrapped(release_sentence(catalogue), columns), *_idle(catalogue)]


def release_sentence(catalogue: Catalogue) -> str:
    """Say what becomes of GPUs that a smaller layout does not use, and what may count on them."""
    each = f"{formats.watts(catalogue.idle_power_w_per_gpu)} each"
    if catalogue.release is Release.HELD:
        return f"Unused GPUs are held: they idle at {each}, charged to the job, and stay the job's."
    if catalogue.release is Release.PARKED:
        return (
            f"Unused GPUs are parked: their processes wait at {each}, charged to the job, and they "
            "stay the job's."
        )
    given = "Unused GPUs are released: given back, and not charged to the run."
    wait_s = catalogue.switch.reacquire_s
    if wait_s is None:
        return (
            f"{given} How long it takes to get them again is not stated (switch.reacquire_s), so "
            "only held GPUs count for the guard, and no plan gives back what it would need again."
        )
    if not wait_s:
        return f"{given} They are the job's again at once, the catalogue says."
    return (
        f"{given} They are the job's again within {quantities.duration(wait_s)} (95 of 100 times)."
    )


def point_lines(
    catalogue: Catalogue,
    point: OperatingPoint,
    columns: int,
    records: Sequence[SwitchRecord] = (),
) -> list[Text | str]:
    """Say of one point when it is worth running, and what switching to and from it takes.

    `records`: switches of a run of this catalogue.
    """
    (found,) = (each for each in break_evens(catalogue) if each.point.id == point.id)
    told = [hull_sentence(found), embodied_sentence(found)]
    if found.vertex and not catalogue.embodied_g_per_gpu_hour:
        told.append(NOT_STATED)
    lines: list[Text | str] = [""]
    for each in filter(None, told):
        lines += formats.wrapped(each, columns)
    heads = (Column(title="SWITCH WITH"), Column(title="LEAVING"), Column(title="COMING BACK"))
    found_ways = ways(catalogue, point, records)
    rows = [(each.other, _way(each.leaving), _way(each.back)) for each in found_ways]
    lines += ["", _switch_head(catalogue), *table(heads, rows), *_legend(rows, columns)]
    lines += ["", *stall_lines(found_ways, point.id, columns)]
    return lines


def _switch_head(catalogue: Catalogue) -> Text:
    source = catalogue.switch.source
    return styled(("switches, ", STRONG), (source, DIM if source == "measured" else WARN))


def _way(way: Way | None) -> str:
    if way is None:
        return NEVER
    own = {Basis.PAIR: OWN, Basis.PREDICTED: PREDICTED}.get(way.basis, "")
    about = ESTIMATED if way.energy_estimated else ""
    return f"{_at_once(way.seconds)}, {about}{_joules(way.energy_j)}{own}"


def _legend(rows: list[tuple[str, str, str]], columns: int) -> Iterator[str]:
    cells = "".join(leaving + back for _, leaving, back in rows)
    if OWN in cells:
        yield from formats.wrapped(f"{OWN} of this pair; the others as [switch] says.", columns)
    if PREDICTED in cells:
        yield from formats.wrapped(
            f"{PREDICTED} seconds predicted from other switches, as listed below.", columns
        )
    if NEVER in cells:
        yield from formats.wrapped(
            f"{NEVER}: how long given-back GPUs take to return is not stated (switch.reacquire_s).",
            columns,
        )
    if ESTIMATED in cells:
        yield from formats.wrapped(
            f"{ESTIMATED} nobody stated the joules: as if the thirstier of both trained on.",
            columns,
        )


def _idle(catalogue: Catalogue) -> Iterator[Text]:
    """Warn where the catalogue says that idle GPUs draw no power."""
    if catalogue.release is not Release.RELEASED and not catalogue.idle_power_w_per_gpu:
        yield styled(("! job.idle_power_w_per_gpu is 0: unused GPUs would draw nothing.", WARN))


def _at_once(seconds: float) -> str:
    """Write a duration; 0 as `at once`."""
    return quantities.duration(seconds) if seconds else "at once"


def _joules(energy_j: float) -> str:
    """Write an energy; 0 as `no joules`."""
    return formats.joules(energy_j) if energy_j else "no joules"
