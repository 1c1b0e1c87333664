"""Switches on the same ranks and mesh, with groups and compiled code kept and without.

    python -m benchmarks.switch --part kept [--rounds 3] [--json]

Preset `tiny` on two ranks, microbatch 1 to 2 and back. In the twin `build` makes a process group of
its own, so that nothing stays. Both are launched in turn, without a compiler and with every block
compiled by `aot_eager` (tracing without a code generator, so less than a real one costs). The first
switch of a launch, which compiles for the second microbatch, is left out.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.report import Report
from benchmarks.switch.launching import switch_job, workplace
from wattmesh.reconfig.layout import Layout

OPTIONS: dict[str, Any] = {"rounds": 3}
LAYOUTS = (Layout(dp_shard=2, micro_batch=1), Layout(dp_shard=2, micro_batch=2))
SWITCHES = 5


def _seconds(compiled: str, *, own_group: bool) -> list[float]:
    """Launch once; the seconds of each switch with its first step, but the first.

    Raises:
        RuntimeError: groups were kept where they should not be, or not where they should.
    """
    with workplace() as folder:
        ran = switch_job(
            folder,
            "tiny",
            LAYOUTS,
            SWITCHES,
            {},
            compiled=compiled,
            own_group=own_group,
            ranks=2,
        )
    if any(("kept" in each.evidence) is own_group for each in ran.told):
        raise RuntimeError(f"kept is {[each.evidence.get('kept') for each in ran.told]}")
    return [ran.seconds(number) for number in ran.numbers[1:]]


def rows(rounds: int) -> Iterator[dict[str, Any]]:
    """One row per compiler: medians of both, and their ratio."""
    for compiled in ("", "aot_eager"):
        kept: list[float] = []
        anew: list[float] = []
        for _ in range(rounds):
            kept += _seconds(compiled, own_group=False)
            anew += _seconds(compiled, own_group=True)
        yield {
            "what": f"same mesh, {f'compiled by {compiled}' if compiled else 'not compiled'}",
            "count": len(kept),
            "kept_s": statistics.median(kept),
            "anew_s": statistics.median(anew),
            "anew_over_kept": statistics.median(anew) / statistics.median(kept),
        }


def kept(chosen: argparse.Namespace) -> Report:
    """Measure what a switch on the same mesh takes with and without what is kept."""
    return Report(benchmark="switch", rows=tuple(rows(chosen.rounds)), goals=())
