"""Hostile input at every door: what was tried, what broke, what the worst input cost.

    python -m benchmarks.hostile [--json] [--door NAME] [--seed N] [--count N] [--forever]

A door is a name and a function of a seed and a count (`DOORS`); to add one, write the function,
which gives a `Tried`, and list it. Inputs are made from the seed alone: the same seed and count try
the same inputs. `--forever` (make fuzz) tries seed after seed until something breaks.
"""

import argparse
import sys
from collections.abc import Callable, Mapping

from benchmarks.hostile import actuator, agents, answers, calls, readers, relay, settings
from benchmarks.hostile.tried import Tried
from benchmarks.report import Goal, Report, run
from wattmesh.errors import InputInvalid

DOORS: Mapping[str, Callable[[int, int], Tried]] = {
    "calls": calls.measure,
    "agents": agents.measure,
    "relay": relay.measure,
    "actuator": actuator.measure,
    "answers": answers.measure,
    "settings": settings.measure,
    "readers": readers.measure,
}
"""By name: tries so many inputs of a seed. One that needs a machine of its own starts it itself."""

SEED, COUNT = 15, 3_000
MIB_PER_MIB, S_PER_MIB = 64, 5
"""What may become of a MiB of input: memory, and seconds of one processor."""


def measure(chosen: argparse.Namespace) -> Report:
    """Try every door, or the one that was named."""
    if chosen.door and chosen.door not in DOORS:
        raise InputInvalid(f"there is no door {chosen.door!r}; there are {', '.join(DOORS)}.")
    doors = [chosen.door] if chosen.door else list(DOORS)
    seed, count = chosen.seed, chosen.count
    tried = [DOORS[door](seed, count) for door in doors]
    while chosen.forever and not any(each.crashes for each in tried):
        print(f"seed {seed}: {sum(each.inputs for each in tried)} inputs, 0 crashes", flush=True)
        seed += 1
        tried = [DOORS[door](seed, count) for door in doors]
    return report_of(tried, seed)


def report_of(tried: list[Tried], seed: int) -> Report:
    """The rows and goals of doors that were tried."""
    rows = [{"seed": seed, **each.row()} for each in tried]
    refused = [each.others_refused for each in tried if each.others_refused is not None]
    memory = [row["worst_mib_per_mib"] for row in rows if row["worst_mib_per_mib"] is not None]
    clock = [row["worst_s_per_mib"] for row in rows if row["worst_s_per_mib"] is not None]
    crashes = float(sum(len(each.crashes) for each in tried))
    return Report(
        benchmark="hostile",
        rows=tuple(rows),
        goals=(
            Goal(name="crashes", value=crashes, goal=0, op="=="),
            Goal(
                name="others_refused",
                value=float(sum(refused)) if refused else None,
                goal=0,
                op="==",
            ),
            Goal(
                name="worst_mib_per_mib",
                value=max(memory, default=None),
                goal=MIB_PER_MIB,
                op="<=",
            ),
            Goal(name="worst_s_per_mib", value=max(clock, default=None), goal=S_PER_MIB, op="<="),
        ),
    )


if __name__ == "__main__":
    sys.exit(run(measure, {"door": "", "seed": SEED, "count": COUNT, "forever": False}))
