"""The safety matrix with its measured seconds: who gives GPUs back when something vanishes.

    python -m benchmarks.safety [--json]

Every row of docs/safety.md's GPU table, in real processes on the fake NVML library: a node in that
state, the part taken away, the seconds from the moment at which the GPUs could be given back (the
lease's end, the GPU's return, ...) until every one is at its baseline or under its obligation.
Nothing was tuned on these figures. GPUs and their power are simulated.
"""

import argparse
import sys
from typing import Any

from benchmarks.report import Goal, Report, run
from benchmarks.safety.node import Node
from benchmarks.safety.rows import CASES, Case


def measure(_: argparse.Namespace) -> Report:
    """Run every row once."""
    rows = [_row(case) for case in CASES]
    seconds = [row["restore_s"] for row in rows if row["restore_s"] is not None]
    return Report(
        benchmark="safety",
        rows=tuple(rows),
        goals=(
            Goal(
                name="gpus_left_capped",
                value=float(sum(row["gpus_left_capped"] for row in rows)),
                goal=0,
                op="==",
            ),
            Goal(name="worst_restore_s", value=max(seconds, default=None), goal=2.0, op="<="),
        ),
    )


def _row(case: Case) -> dict[str, Any]:
    """Run one row; GPUs that are not where they must be at its deadline are left capped."""
    left, seconds, trouble = 0, None, ""
    with Node() as node:
        try:
            seconds = round(max(0.0, case.run(node)), 3)
        except (TimeoutError, AssertionError) as error:
            trouble = f"{type(error).__name__}: {error}"[:300]
            left = sum(
                each.lock_mhz is not None or each.requested_limit_w < each.default_limit_w
                for each in node.truths()
            )
    return {
        "case": case.name,
        "state": case.state,
        "vanishes": case.vanishes,
        "brings_back": case.brings_back,
        "within": case.within,
        "restore_s": seconds,
        "gpus_left_capped": max(left, int(seconds is None)),
        "trouble": trouble,
        "power": "simulated",
    }


if __name__ == "__main__":
    sys.exit(run(measure))
