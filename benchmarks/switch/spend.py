"""What a switch spends by phase, over sizes of the state and numbers of ranks, and its prediction.

    python -m benchmarks.switch --part spend [--gigabytes 0.01,0.1,...] [--ranks 2,4,8] [--json]

For each size and number of ranks one launch of the job, which switches between FSDP, FSDP with
tensor parallel, and from four ranks on half of its ranks. Its first switch, which takes new pages
and walks all objects, has a row of its own and is in no fit. Sizes that do not fit into free memory
or into the minutes have a row that says so.

Then each size is held out, and each number of ranks: the model (`policies/switch_model.py`) is
fitted to the launches of all others, and predicts those. An error is that of a launch: the median
of its predictions over the median of its switches. Nothing was tuned on these figures but the
model's form.

On a machine with other work, seconds are that work's as much as the program's. So the same is told
by processor time: every phase of a switch times (processor seconds of all ranks in the switch /
cores) over its seconds. The goals are by seconds, and hold on a quiet machine only.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.report import Goal, Report
from benchmarks.switch.job import JobOptions, state_bytes
from benchmarks.switch.launching import Launched, switch_job, workplace
from wattmesh.policies.switch_model import PHASES, MeasuredSpend, SwitchShape, fit, seconds_of
from wattmesh.reconfig.catalogue import SwitchSpend
from wattmesh.reconfig.checkpoint.in_memory.early_rebuild import free_memory
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch_spend import spend_of

SWITCHES = 6
NEEDED, RANK_BYTES = 3.0, 0.4e9
"""Memory that must be free: so many times the state (itself, its copy, gradients), and for each
rank what torch takes."""

OPTIONS: dict[str, Any] = {
    "gigabytes": "0.01,0.1,0.4,1.5,4,8",
    "ranks": "2,4,8",
    "minutes": 60.0,
}

BASE = "bench-gigabyte"
MODELS = {
    0.01: {"dim": 128, "layers": 3, "hidden": 352},
    0.1: {"dim": 384, "layers": 4, "hidden": 1056},
    0.4: {"dim": 768, "layers": 4, "hidden": 2112},
    1.5: {"dim": 1024, "layers": 8, "hidden": 2816},
    4.0: {"dim": 1536, "layers": 9, "hidden": 4224},
    8.0: {"dim": 2048, "layers": 11, "hidden": 5632},
}
"""By gigabytes of state."""

LAYOUTS = {
    2: (Layout(dp_shard=2), Layout(tp=2)),
    4: (Layout(dp_shard=4), Layout(dp_shard=2, tp=2), Layout(dp_shard=2)),
    8: (Layout(dp_shard=8), Layout(dp_shard=4, tp=2), Layout(dp_shard=4)),
}
"""By ranks of the launch; gone through in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One launch.

    Attributes:
        first: its first switch. `others`: its other ones; `by_cpu`: the same, by processor time.
    """

    gigabytes: float
    ranks: int
    first: MeasuredSpend
    others: tuple[MeasuredSpend, ...]
    by_cpu: tuple[MeasuredSpend, ...]


def cell_of(ran: Launched, gigabytes: float, ranks: int) -> Cell:
    """Read what every switch of a launch spent.

    Raises:
        RuntimeError: a switch did not tell it.
    """
    layouts, found, by_cpu = LAYOUTS[ranks], [], []
    cores = len(os.sched_getaffinity(0))
    for number, told in zip(ran.numbers, ran.told, strict=True):
        before, after = (layouts[at % len(layouts)] for at in (number - 1, number))
        total_s = float(told.evidence["total_s"])
        spend = spend_of(
            told.evidence,
            str(before),
            str(after),
            first_s=max(0.0, ran.seconds(number) - total_s),
        )
        if spend is None:
            raise RuntimeError(f"switch {number} does not say what it spent: {told.evidence}")
        shape = SwitchShape.of(before, after, spend.state_bytes)
        found.append(MeasuredSpend(shape=shape, spend=spend))
        share = ran.cpu_s(number) / cores / ran.seconds(number)
        by_cpu.append(MeasuredSpend(shape=shape, spend=_scaled(spend, share)))
    return Cell(
        gigabytes=gigabytes,
        ranks=ranks,
        first=found[0],
        others=tuple(found[1:]),
        by_cpu=tuple(by_cpu[1:]),
    )


def _scaled(spend: SwitchSpend, share: float) -> SwitchSpend:
    """Return a spend with every phase times `share`."""
    scaled: dict[str, Any] = {
        f"{name}_s": share * (seconds_of(spend, name) or 0.0) for name in PHASES
    }
    return replace(spend, **scaled)


def cells(
    sizes: Sequence[float], ranks: Sequence[int], minutes: float
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Launch every size with every number of ranks; returns rows of those that were left out."""
    found, left_out = [], []
    until_s = time.monotonic() + 60.0 * minutes
    for gigabytes in sizes:
        size = state_bytes(_options(gigabytes).config)[1]
        for count in ranks:
            what = f"{gigabytes:g} GB, {count} ranks"
            free, needed = free_memory(), NEEDED * size + count * RANK_BYTES
            left_s = until_s - time.monotonic()
            if needed > free or left_s <= 0:
                why = f"{free / 1e9:.1f} GB of memory are free" if left_s > 0 else "no time left"
                left_out.append({"what": f"{what}: not measured, {why}"})
                continue
            with workplace() as folder:
                ran = switch_job(
                    folder,
                    BASE,
                    LAYOUTS[count],
                    SWITCHES,
                    {},
                    model=MODELS[gigabytes],
                    ranks=count,
                )
            found.append(cell_of(ran, gigabytes, count))
    return found, left_out


def _options(gigabytes: float) -> JobOptions:
    return JobOptions(
        preset=BASE, layout={}, folder="", out="", switches=0, model=MODELS[gigabytes]
    )


def held_out(
    found: Sequence[Cell], of: Callable[[Cell], tuple[MeasuredSpend, ...]], unit: str
) -> Iterator[dict[str, Any]]:
    """Predict each size from the others, and each number of ranks; a row for each launch.

    Args:
        found: the launches.
        of: gives the switches of one of them.
        unit: what they are measured in, for the rows.
    """
    for name in ("gigabytes", "ranks"):
        for value in sorted({getattr(each, name) for each in found}):
            rest = [each for each in found if getattr(each, name) != value]
            model = fit([one for each in rest for one in of(each)])
            if model is None:
                continue
            for cell in (each for each in found if getattr(each, name) == value):
                measured_s = statistics.median(each.total_s or 0.0 for each in of(cell))
                predictions = [model.predict(each.shape) for each in of(cell)]
                seconds = statistics.median(each.seconds for each in predictions)
                yield {
                    "what": f"{cell.gigabytes:g} GB, {cell.ranks} ranks, without {name} {value:g}, "
                    f"by {unit}",
                    "measured_s": measured_s,
                    "predicted_s": seconds,
                    "low_s": statistics.median(each.low_s for each in predictions),
                    "high_s": statistics.median(each.high_s for each in predictions),
                    "error": abs(seconds / measured_s - 1.0),
                }


def row_of(cell: Cell, what: str, spent: Sequence[MeasuredSpend]) -> dict[str, Any]:
    """The median of every phase."""
    row: dict[str, Any] = {
        "what": f"{cell.gigabytes:g} GB, {cell.ranks} ranks, {what}",
        "count": len(spent),
        "state_mb": spent[0].spend.state_bytes / 1e6,
    }
    for name in PHASES:
        row[f"{name}_s"] = statistics.median(seconds_of(each.spend, name) or 0.0 for each in spent)
    totals = sorted(each.total_s or 0.0 for each in spent)
    return {**row, "total_s": statistics.median(totals), "longest_s": totals[-1]}


def spend(chosen: argparse.Namespace) -> Report:
    """Measure what a switch spends over sizes and ranks, and how well others predict it."""
    sizes = [float(each) for each in chosen.gigabytes.split(",")]
    ranks = [int(each) for each in chosen.ranks.split(",")]
    found, left_out = cells(sizes, ranks, chosen.minutes)
    rows = [row_of(each, "switches", each.others) for each in found]
    rows += [row_of(each, "the first switch", [each.first]) for each in found]
    rows += [row_of(each, "by processor time", each.by_cpu) for each in found]
    errors = list(held_out(found, lambda cell: cell.others, "seconds"))
    of_each = [float(each["error"]) for each in errors]
    by_cpu = list(held_out(found, lambda cell: cell.by_cpu, "processor time"))
    errors += by_cpu
    if by_cpu:
        cpu_errors = [float(each["error"]) for each in by_cpu]
        errors.append(
            {
                "what": "error by processor time, median and worst",
                "error": statistics.median(cpu_errors),
                "worst": max(cpu_errors),
            }
        )
    model = fit([one for each in found for one in each.others])
    for phase in model.phases if model else ():
        rows.append(
            {
                "what": f"model of {phase.name}",
                "fixed_s": phase.fixed_s,
                "s_per_rank": phase.per_rank_s,
                "gb_per_s": 1.0 / phase.s_per_gb if phase.s_per_gb else None,
                "bytes of": "one rank" if phase.by_rank else "all ranks",
            }
        )
    goals = (
        Goal(
            name="prediction_median_error",
            value=statistics.median(of_each) if of_each else None,
            goal=0.25,
            op="<=",
        ),
        Goal(name="prediction_worst_error", value=max(of_each, default=None), goal=0.6, op="<="),
    )
    return Report(benchmark="switch", rows=(*rows, *errors, *left_out), goals=goals)
