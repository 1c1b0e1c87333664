"""The screen of `wattmesh policy bench --jobs`: a table per trace, then what needs a look. Pure.

Invariant: a saving names what it is against, and that it is replayed; a rule with deadlines lost
or a broken cap says so in its own line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import DIM, STRONG, styled, trouble
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.replay.stream_rows import AHEAD, FIRST_COME, JOINT, RuleRow, StreamResult

COLUMNS = (
    Column(title="RULE"),
    Column(title="GRAMS", right=True),
    Column(title="SAVED", right=True),
    Column(title="ENERGY", right=True),
    Column(title="IDLE", right=True),
    Column(title="LATE", right=True),
    Column(title="LOST", right=True),
    Column(title="SWITCHES", right=True),
    Column(title="OVER CAP", right=True),
)


def screen(found: Sequence[StreamResult]) -> list[Text | str]:
    """Lay out the results."""
    lines: list[Text | str] = []
    for each in found:
        lines += [*([""] if lines else []), *_one(each)]
    return [
        *lines,
        "",
        styled((f"SAVED: against {FIRST_COME}; IDLE: grams of GPUs that no job owned", DIM)),
        styled((f"LATE: deadlines missed; LOST: those that {FIRST_COME} meets", DIM)),
        styled((f"{JOINT}: planned anew as jobs arrive; {AHEAD}: all jobs known before", DIM)),
    ]


def stream_json(found: StreamResult) -> dict[str, Any]:
    """Give a result as stable keys."""
    told = {each.policy: found.share_of_bound_gain(each.policy) for each in found.rows}
    return asdict(found) | {"share_of_bound_gain": told}


def _one(found: StreamResult) -> Iterator[Text | str]:
    jobs = formats.plural(len(found.rows[0].jobs), "job")
    span = quantities.duration(found.hours * 3600)
    yield styled((f"{found.stream} on {found.trace}", STRONG), f" · {jobs} · {span}")
    yield "replayed, not measured; every rule knows the grid ahead, and nothing fails"
    first_g = found.row(FIRST_COME).carbon_g
    yield from table(COLUMNS, [_cells(each, first_g) for each in found.rows])
    yield from _bound(found, first_g)
    yield from trouble(_faults(found))


def _cells(row: RuleRow, first_g: float) -> list[str]:
    return [
        row.policy,
        quantities.grams(row.carbon_g),
        formats.percent(1 - row.carbon_g / first_g, 1) if first_g > 0 else quantities.UNKNOWN,
        quantities.joules(row.energy_j),
        quantities.grams(row.idle_g),
        str(len(row.missed)),
        str(len(row.lost)),
        str(row.switches),
        quantities.duration(row.cap_exceeded_s) if row.cap_exceeded_s else "-",
    ]


def _bound(found: StreamResult, first_g: float) -> Iterator[str]:
    if found.bound_g is None:
        yield "no bound: no joint plan was found"
        return
    saved = formats.percent(1 - found.bound_g / first_g, 1) if first_g > 0 else quantities.UNKNOWN
    yield f"bound: nobody emits less than {quantities.grams(found.bound_g)} ({saved} saved)"
    for policy in (JOINT, AHEAD):
        share = found.share_of_bound_gain(policy)
        if share is not None:
            yield (
                f"{policy} gains {formats.percent(share)} of what the bound gains over "
                f"{found.peer}, the better of each-alone and greedy"
            )


def _faults(found: StreamResult) -> Iterator[str]:
    if found.filled:
        yield (
            f"{found.filled} of the {found.intervals} intervals of {found.trace} were missing or "
            "not plausible; each has the value before it, which was not recorded for it"
        )
    for row in found.rows:
        if row.lost:
            yield f"{row.policy} is late with {', '.join(row.lost)}, and {FIRST_COME} is not"
        if row.cap_exceeded_s > found.slot_s:
            over = quantities.duration(row.cap_exceeded_s)
            yield f"{row.policy} is above the cap for {over}, longer than one slot"
        if row.gpus_exceeded_s:
            yield f"{row.policy} uses more GPUs than there are"
