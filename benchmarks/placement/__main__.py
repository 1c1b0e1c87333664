"""Placing experts: traffic and modelled energy beside contiguous, random and the best there is.

    python -m benchmarks.placement [--json] [--limit 20]

Each placement is made from the first half of a trace and judged on the second. `example`: what the
example model chose after 200 steps on Python's source; `topical`: drawn, with topics and hot
experts. GPUs are assumed (`expert_groups`). Small cases are solved exactly by HiGHS in `--limit`
seconds each; only proven ones count for `gap_to_optimum`, and there both see the same counts.
Seconds are the processor's, of one thread. The search's numbers of starts were chosen on topical
cases of other seeds.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.experts.groups import Chosen, group, problem, topical
from benchmarks.experts.train import EXPERTS, Steps, Variant, train
from benchmarks.placement.exact import optimum
from benchmarks.report import Goal, Report, run
from wattmesh.policies.experts.layer_energy import ExpertGpu
from wattmesh.policies.experts.placement.affinity import count_choices
from wattmesh.policies.experts.placement.objective import cost
from wattmesh.policies.experts.placement.problem import (
    Counts,
    Gpus,
    PlacementProblem,
    contiguous,
)
from wattmesh.policies.experts.placement.replicas import replicate
from wattmesh.policies.experts.placement.search import place

EXAMPLE_STEPS = Steps(shared=100, own=100)
RANDOM = 5
TOPICAL = {
    "topical, 64 experts, 8 h100": (64, group((8, "h100"))),
    "topical, 128 experts, 32 h100": (128, group((32, "h100"), per_node=8)),
    "topical, 256 experts, 64 h100": (256, group((64, "h100"), per_node=8)),
    "topical, 64 experts, 4 h100 + 4 a100": (64, group((4, "h100"), (4, "a100"))),
    "topical, 128 experts, 8 h100 + 8 l40s": (128, group((8, "h100"), (8, "l40s"))),
}
LARGEST = "topical, 256 experts, 64 h100"
SMALL = {
    "small, 8 experts, 4 h100": (8, 1, group((4, "h100"), per_node=2)),
    "small, 12 experts, 4 h100": (12, 1, group((4, "h100"), per_node=2)),
    "small, 12 experts, 2 h100 + 2 a100": (12, 1, group((2, "h100"), (2, "a100"), per_node=2)),
    "small, 16 experts, 4 h100": (16, 1, group((4, "h100"), per_node=2)),
    "small, 8 experts, 2 layers, 4 h100": (8, 2, group((4, "h100"), per_node=2)),
}


def halves(chosen: tuple[Chosen, ...], experts: int, *, onward: bool) -> tuple[Counts, Counts]:
    """Count the first half of the tokens, and the second; `onward`: with the next layer's."""
    half = len(chosen[0]) // 2
    parts = ([each[:half] for each in chosen], [each[half:] for each in chosen])
    first, second = (count_choices(each, experts) for each in parts)
    return (first, second) if onward else (standing(first), standing(second))


def standing(counts: Counts) -> Counts:
    """Leave out what leads to the next layer: each token returns to its own GPU."""
    return replace(counts, onward_LXX=np.zeros_like(counts.onward_LXX))


def visits(problem: PlacementProblem, gpu_LX: Gpus, chosen: tuple[Chosen, ...]) -> float:
    """Count exactly what pairs only approximate: nodes that each token is sent to, summed."""
    nodes = np.unique([gpu.node for gpu in problem.gpus], return_inverse=True)[1]
    total = 0
    for at_X, chosen_NP in zip(gpu_LX, chosen, strict=True):
        visited = np.zeros((len(chosen_NP), int(nodes.max()) + 1), dtype=bool)
        visited[np.arange(len(chosen_NP))[:, None], nodes[at_X[chosen_NP]]] = True
        total += int(visited.sum())
    return float(total)


def judged(
    name: str,
    chosen: tuple[Chosen, ...],
    experts: int,
    gpus: tuple[ExpertGpu, ...],
    *,
    onward: bool = False,
) -> dict[str, Any]:
    """Place by the first half, and judge by the second."""
    seen, unseen = (problem(each, gpus) for each in halves(chosen, experts, onward=onward))
    began = time.process_time()
    placed = place(seen)
    seconds = time.process_time() - began
    rest = tuple(each[len(each) // 2 :] for each in chosen)
    # A launcher deals equal shares, whatever the GPUs are.
    plain = contiguous(_equal_slots(unseen))
    ours, before = cost(unseen, placed), cost(_equal_slots(unseen), plain)
    draw = np.random.default_rng(1)
    shuffled = [np.stack([draw.permutation(row) for row in placed]) for _ in range(RANDOM)]
    chance = float(np.mean([cost(unseen, each).crossings for each in shuffled]))
    copied = replicate(seen, placed, (1,) * len(gpus))
    return {
        "case": name,
        "layers": len(chosen),
        "tokens": len(rest[0]),
        "traffic_over_contiguous": ours.crossings / before.crossings,
        "traffic_over_random": ours.crossings / chance,
        "visits_over_contiguous": visits(unseen, placed, rest) / visits(unseen, plain, rest),
        "layer_energy_over_contiguous": ours.layer_energy_j / before.layer_energy_j,
        "worst_load": ours.worst_load,
        "worst_load_contiguous": before.worst_load,
        "copies": copied.copies,
        "seconds": seconds,
    }


def beside_highs(
    name: str, case: tuple[int, int, tuple[ExpertGpu, ...]], limit_s: float
) -> dict[str, Any]:
    """Place and solve exactly, on the same counts."""
    experts, layers, gpus = case
    counts = count_choices(topical(experts, layers, 2, 4000, seed=experts + layers), experts)
    asked = problem(counts, gpus)
    began = time.process_time()
    ours = cost(asked, place(asked)).objective_j
    seconds = time.process_time() - began
    began = time.perf_counter()
    best = optimum(asked, limit_s)
    return {
        "case": name,
        "seconds": seconds,
        "highs_seconds": time.perf_counter() - began,
        "proven": best.proven,
        "gap_to_optimum": ours / best.objective_j - 1 if best.objective_j else None,
        "gap_to_bound": ours / best.bound_j - 1 if best.bound_j > 0 else None,
    }


def _equal_slots(asked: PlacementProblem) -> PlacementProblem:
    most = -(-asked.experts // len(asked.gpus))
    return replace(asked, slots=(most,) * len(asked.gpus))


def measure(chosen: argparse.Namespace) -> Report:
    """Place experts of real and drawn routing; HiGHS has `--limit` seconds for each small case."""
    trained = train(Variant(name="example"), 0, EXAMPLE_STEPS)
    experts = EXPERTS
    rows: list[Mapping[str, Any]] = [
        judged("example, 8 h100", trained.chosen, experts, group((8, "h100"))),
        judged("example, 8 h100, onward", trained.chosen, experts, group((8, "h100")), onward=True),
        judged(
            "example, 4 h100 + 4 a100", trained.chosen, experts, group((4, "h100"), (4, "a100"))
        ),
    ]
    for name, (count, gpus) in TOPICAL.items():
        routing = topical(count, 4, 8, 8000, seed=count + len(gpus))
        rows.append(judged(name, routing, count, gpus))
    small = [beside_highs(name, case, chosen.limit) for name, case in SMALL.items()]
    gaps = [row["gap_to_optimum"] for row in small if row["proven"]]
    largest = next(row for row in rows if row["case"] == LARGEST)
    return Report(
        benchmark="placement",
        rows=(*rows, *small),
        goals=(
            Goal(name="gap_to_optimum", value=max(gaps, default=None), goal=0.03, op="<="),
            Goal(
                name="traffic_over_contiguous",
                value=rows[0]["traffic_over_contiguous"],
                goal=0.8,
                op="<=",
            ),
            Goal(name="largest_seconds", value=largest["seconds"], goal=60.0, op="<="),
        ),
    )


if __name__ == "__main__":
    sys.exit(run(measure, {"limit": 20.0}))
