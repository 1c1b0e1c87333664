"""What moving a job between layouts costs, in place and by restart.

    python -m benchmarks.switch [--part latency|bytes|hosts|soak|spend|kept]
                                [--switches 24] [--json]

latency   preset `bench`, 8 layouts over 4 ranks, in turn: seconds of every phase and in total, from
          the first rank that enters the boundary to the last that has done its first step in the
          new layout. Against it a warm restart with the same save: the save, then from the start
          of the processes (no agent) to the last first step; files and modules in the page cache.
bytes     a model with over 1 GB of state: logical bytes per second of switch (first step left
          out) over the speed of memcpy of one thread, and peak memory over steady; the same of the
          parts that move or digest bytes. Then these parts without a job (switch_copy.py).
hosts     what crosses between two hosts, over a plain socket copy (switch_hosts.py).
soak      200 switches over 16 layouts: what a rank's descriptors, threads and resident memory
          grow by per switch, over the last 100, within layouts.

spend     what a switch spends by phase, over sizes of the state and numbers of ranks, and how far
          the prediction of held-out sizes and ranks is from it (spend.py).
kept      switches on the same mesh, with groups and compiled code kept and without (kept.py).

Orders come over the real protocol (switch_orders.py); the job is the example trainer under the real
session (switch_job.py). Nothing was tuned on other figures than these.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import switch_copy, switch_hosts
from benchmarks.report import Goal, Report, run
from benchmarks.switch import kept, spend
from benchmarks.switch.job import state_bytes
from benchmarks.switch.launching import RANKS, Launched, restart_job, switch_job, workplace
from examples.pretrain.config import PRESETS
from wattmesh.reconfig.layout import Layout

RESTARTS = 5
OF_BYTES = ("digest_before_s", "stage_s", "load_s", "digest_after_s")
"""Parts of a switch whose time follows the bytes of the state, and not the model's work."""

EIGHT = (
    Layout(dp_shard=2, tp=2),
    Layout(dp_shard=4, ep=4),
    Layout(pp=2, dp_shard=2, ep=2),
    Layout(dp_shard=2, cp=2, ep=2),
    Layout(tp=2),
    Layout(dp_replicate=2, dp_shard=2),
    Layout(pp=2, tp=2),
    Layout(pp=2, cp=2),
)
"""Every dimension, and ranks that are parked and come back."""

SIXTEEN = (
    *EIGHT,
    Layout(),
    Layout(dp_shard=2, ep=2),
    Layout(pp=2),
    Layout(dp_replicate=4),
    Layout(cp=2),
    Layout(dp_replicate=2, tp=2),
    Layout(pp=2, dp_shard=2, schedule="Interleaved1F1B"),
    Layout(cp=2, tp=2, ep=4),
)

_BEYOND_95 = 1.984
"""Of Student's t with about 98 degrees of freedom, two-sided 95 %."""


def described(config: str) -> dict[str, Any]:
    """What was trained: a row that says how large it is."""
    chosen = PRESETS[config]
    count, size = state_bytes(chosen)
    model = chosen.model
    return {
        "what": f"{config}: {model.layers} layers, width {model.dim}, {count} parameters",
        "state_mb": size / 1e6,
    }


def phases(ran: Launched) -> Iterator[dict[str, Any]]:
    """One row per phase: mean and p95 over all switches, as the leader measured them."""
    evidence = [each.evidence for each in ran.told]
    names = [name for name in evidence[0] if name.endswith("_s") and name != "total_s"]
    for name in names:
        yield _spread(f"phase {name}", [float(each.get(name, 0.0)) for each in evidence])
    yield _spread("first step", [ran.step_s(number) for number in ran.numbers])
    yield _spread("in all", [ran.seconds(number) for number in ran.numbers])
    yield _spread("processor time of all ranks", [ran.cpu_s(number) for number in ran.numbers])


def _spread(what: str, seconds: Sequence[float]) -> dict[str, Any]:
    return {
        "what": what,
        "count": len(seconds),
        "mean_s": statistics.mean(seconds),
        "p95_s": float(np.quantile(seconds, 0.95)),
        "max_s": max(seconds),
    }


def latency(chosen: argparse.Namespace) -> Report:
    """Measure switches of a small model, and restarts with the same checkpoint."""
    with workplace() as folder:
        ran = switch_job(folder, "bench", EIGHT, chosen.switches, {})
        again = [restart_job(folder, "bench", number) for number in range(RESTARTS)]
    took = [ran.seconds(number) for number in ran.numbers]
    saves = statistics.mean(float(each.evidence["save_s"]) for each in ran.told)
    restarts = [saves + each.start_s for each in again]
    by_layout = [
        {"what": f"into {each}", "count": len(found), "mean_s": statistics.mean(found)}
        for each in EIGHT
        if (found := [took[n - 1] for n in ran.numbers if ran.told[n - 1].layout == each])
    ]
    rows = [
        described("bench"),
        *phases(ran),
        *by_layout,
        _spread("warm restart: the same save, start, import, build, load, first step", restarts),
    ]
    mean = statistics.mean(took)
    goals = (
        Goal(name="in_place_s", value=mean, goal=0.6, op="<="),
        Goal(
            name="speedup_over_restart",
            value=statistics.mean(restarts) / mean,
            goal=10.0,
            op=">=",
        ),
    )
    return Report(benchmark="switch", rows=tuple(rows), goals=goals)


def memcpy_gb_per_s(size: int = 1 << 30, times: int = 5) -> float:
    """Copy a gigabyte from memory to memory, pages touched before; the median."""
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    seconds = []
    for _ in range(times):
        began_s = time.monotonic()
        np.copyto(target, source)
        seconds.append(time.monotonic() - began_s)
    return size / 1e9 / statistics.median(seconds)


def moved(chosen: argparse.Namespace) -> Report:
    """Measure switches of a model with over a gigabyte of state."""
    layouts = [replace(each, ep=1) for each in EIGHT[:4]]  # the model is dense
    with workplace() as folder:
        ran = switch_job(folder, "bench-gigabyte", layouts, min(chosen.switches, 8), {})
    _, size = state_bytes(PRESETS["bench-gigabyte"])
    bare = [ran.seconds(number) - ran.step_s(number) for number in ran.numbers]
    bytes_s = [sum(float(each.evidence.get(part, 0)) for part in OF_BYTES) for each in ran.told]
    copies = memcpy_gb_per_s()
    gb_per_s = size / 1e9 / statistics.mean(bare)
    rows = [
        described("bench-gigabyte"),
        *phases(ran),
        {"what": "state over seconds without the first step", "gb_per_s": gb_per_s},
        {
            "what": f"state over seconds of {', '.join(OF_BYTES)}",
            "gb_per_s": size / 1e9 / statistics.mean(bytes_s),
        },
        {"what": "memcpy, one thread", "gb_per_s": copies},
        {
            "what": "peak resident over steady, of the rank with the most",
            "ratio": max(_peak_over_steady(ran)),
        },
    ]
    rows += [{**row, "what": f"without a job: {row['what']}"} for row in switch_copy.rows()]
    goal = Goal(name="gb_per_s_over_memcpy", value=gb_per_s / copies, goal=0.5, op=">=")
    return Report(benchmark="switch", rows=tuple(rows), goals=(goal,))


def _peak_over_steady(ran: Launched) -> Iterator[float]:
    """Per switch and rank: the most that was resident, over the larger of before and after."""
    for each in ran.began:
        before = [left.rss_mib for left in ran.left
                  if (left.rank, left.number) == (each.rank, each.number)]  # fmt: skip
        if before:
            yield each.peak_mib / max(before[0], each.rss_mib)


def slope(numbers: Sequence[int], values: Sequence[float], groups: Sequence[str]) -> list[float]:
    """Growth per switch within groups: [estimate, half of its 95 % interval].

    Each group's own mean is taken out of both, so that layouts that need more do not look like
    growth.
    """
    x, y = np.array(numbers, dtype=float), np.array(values, dtype=float)
    names = np.array(groups)
    for name in set(groups):
        at = names == name
        x[at] -= x[at].mean()
        y[at] -= y[at].mean()
    estimate = float(x @ y / (x @ x))
    left = len(x) - len(set(groups)) - 1
    error = math.sqrt(float(np.square(y - estimate * x).sum()) / left / float(x @ x))
    return [estimate, _BEYOND_95 * error]


GROWTH = {"files": 0.01, "threads": 0.01, "rss_mib": 0.1}
"""What a rank may gain by a switch: after a thousand, ten files and threads and 100 MiB."""


def soak(chosen: argparse.Namespace) -> Report:
    """Measure what 200 switches leave behind in a process."""
    with workplace() as folder:
        ran = switch_job(folder, "tiny-moe", SIXTEEN, chosen.soak, {})
    rows: list[dict[str, Any]] = [described("tiny-moe"), *phases(ran)]
    late = [each for each in ran.began if each.number > chosen.soak - 100]
    goals = []
    for what, most in GROWTH.items():
        worst = 0.0
        for rank in range(RANKS):
            mine = [each for each in late if each.rank == rank]
            found = [float(getattr(each, what)) for each in mine]
            estimate, half = slope(
                [each.number for each in mine], found, [each.layout for each in mine]
            )
            worst = max(worst, estimate)
            rows.append(
                {
                    "what": f"{what} of rank {rank}, growth per switch over the last 100",
                    "count": len(mine),
                    "slope": estimate,
                    "low": estimate - half,
                    "high": estimate + half,
                    "at_end": found[-1],
                }
            )
        goals.append(Goal(name=f"{what}_per_switch", value=worst, goal=most, op="<="))
    return Report(benchmark="switch", rows=tuple(rows), goals=tuple(goals))


PARTS = {
    "latency": latency,
    "bytes": moved,
    "hosts": lambda _: switch_hosts.report(),
    "soak": soak,
    "spend": spend.spend,
    "kept": kept.kept,
}


def measured(chosen: argparse.Namespace) -> Report:
    """Measure what moving a job between layouts costs; --part names what."""
    return PARTS[chosen.part](chosen)


if __name__ == "__main__":
    sys.exit(
        run(
            measured,
            {"part": "latency", "switches": 24, "soak": 200, **spend.OPTIONS, **kept.OPTIONS},
        )
    )
