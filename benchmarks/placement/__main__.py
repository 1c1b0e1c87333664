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
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCase:
    """A case that HiGHS solves to the end.

    Attributes:
        tokens_stay: whether the next layer's experts count. `spare`: slots on each GPU beyond those
            by speed. `skew`: of the experts' popularity. `crossing`: times what a crossing costs.
        tolerance: of the time that each GPU may take.
    """

    experts: int
    gpus: tuple[ExpertGpu, ...]
    layers: int = 1
    tokens_stay: bool = False
    spare: int = 0
    skew: float = 0.7
    crossing: float = 1.0
    tolerance: float = 0.1

    def problems(self) -> tuple[PlacementProblem, PlacementProblem]:
        """Draw it: of half of the tokens, and of the others."""
        routing = topical(
            self.experts, self.layers, 2, 8000, seed=self.experts + self.layers, skew=self.skew
        )
        asked = [
            problem(each, self.gpus, extra=self.spare, tolerance=self.tolerance)
            for each in halves(routing, self.experts, onward=self.tokens_stay)
        ]
        seen, unseen = (
            replace(
                each,
                crossing_j=self.crossing * each.crossing_j,
                near_crossing_j=self.crossing * each.near_crossing_j,
            )
            for each in asked
        )
        return seen, unseen


FOUR = group((4, "h100"), per_node=2)
PAIRS = group((2, "h100"), (2, "a100"), per_node=2)
TORN = tuple(replace(gpu, node=f"node-{at % 2}") for at, gpu in enumerate(PAIRS))
SIX = group((4, "h100"), (2, "l40s"), per_node=2)
KNOWN = {
    "8 experts, 4 h100": KnownCase(experts=8, gpus=FOUR),
    "12 experts, 4 h100": KnownCase(experts=12, gpus=FOUR),
    "12 experts, 2 h100 + 2 a100": KnownCase(experts=12, gpus=PAIRS),
    "8 experts, 2 layers, onward, 4 h100": KnownCase(
        experts=8, gpus=FOUR, layers=2, tokens_stay=True
    ),
    "uneven: 11 experts, 4 h100": KnownCase(experts=11, gpus=FOUR),
    "uneven: 10 experts, 4 h100 + 2 l40s": KnownCase(experts=10, gpus=SIX),
    "mixed nodes: 11 experts, 2 h100 + 2 a100": KnownCase(experts=11, gpus=TORN),
    "mixed, onward: 6 experts, 2 layers, 2 h100 + 2 a100": KnownCase(
        experts=6, gpus=TORN, layers=2, tokens_stay=True
    ),
    "onward: 6 experts, 3 layers, 4 h100": KnownCase(
        experts=6, gpus=FOUR, layers=3, tokens_stay=True
    ),
    "skewed: 12 experts, 4 h100": KnownCase(experts=12, gpus=FOUR, skew=1.5),
    "skewed, mixed: 12 experts, 2 h100 + 2 a100": KnownCase(experts=12, gpus=TORN, skew=1.5),
    "room: 9 experts, 4 h100, 2 spare": KnownCase(experts=9, gpus=FOUR, spare=2),
    "room, mixed: 10 experts, 2 h100 + 2 a100, 2 spare": KnownCase(
        experts=10, gpus=PAIRS, spare=2, skew=1.0
    ),
    "dear crossings: 10 experts, 2 h100 + 2 a100": KnownCase(
        experts=10, gpus=TORN, spare=1, crossing=30.0
    ),
    "tight, dear crossings: 10 experts, 2 h100 + 2 a100": KnownCase(
        experts=10, gpus=TORN, spare=1, crossing=100.0, tolerance=0.0, skew=1.0
    ),
    "tight, dear crossings: 12 experts, 4 h100 + 2 l40s": KnownCase(
        experts=12, gpus=SIX, spare=1, crossing=100.0, tolerance=0.0
    ),
    "dear crossings, onward: 6 experts, 2 layers, 4 h100": KnownCase(
        experts=6, gpus=FOUR, layers=2, tokens_stay=True, spare=1, crossing=30.0, skew=1.0
    ),
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
    trace = cost(seen, placed), cost(_equal_slots(seen), contiguous(_equal_slots(seen)))
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
        "joules_over_contiguous": ours.objective_j / before.objective_j,
        "seen_joules_over_contiguous": trace[0].objective_j / trace[1].objective_j,
        "seen_layer_energy_over_contiguous": trace[0].layer_energy_j / trace[1].layer_energy_j,
        "worst_load": ours.worst_load,
        "worst_load_contiguous": before.worst_load,
        "copies": copied.copies,
        "seconds": seconds,
    }


def beside_highs(name: str, case: KnownCase, limit_s: float) -> dict[str, Any]:
    """Place and solve exactly, on the same counts; and judge both on other tokens.

    `gap_to_optimum` is of all joules, of which no placement changes most where GPUs are alike;
    `gain_missed` is of what the best saves over experts by number.
    """
    asked, unseen = case.problems()
    began = time.process_time()
    placed = place(asked)
    seconds = time.process_time() - began
    ours, plain = (cost(asked, each).objective_j for each in (placed, contiguous(asked)))
    began = time.perf_counter()
    best = optimum(asked, limit_s)
    took = time.perf_counter() - began
    known = best.objective_j
    return {
        "case": f"known, {name}",
        "seconds": seconds,
        "highs_seconds": took,
        "proven": best.proven,
        "gap_to_optimum": None if known is None else ours / known - 1,
        "gap_to_bound": ours / best.bound_j - 1 if best.bound_j > 0 else None,
        "unseen_over_optimum": None
        if best.gpu_LX is None
        else cost(unseen, placed).objective_j / cost(unseen, best.gpu_LX).objective_j - 1,
        "unseen_over_contiguous": cost(unseen, placed).objective_j
        / cost(unseen, contiguous(unseen)).objective_j
        - 1,
        "gain_missed": None
        if known is None or plain <= known
        else (ours - known) / (plain - known),
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
    known = [beside_highs(name, case, chosen.limit) for name, case in KNOWN.items()]
    gaps = [row["gap_to_optimum"] for row in known if row["proven"]]
    missed = [row["gain_missed"] for row in known if row["proven"] and row["gain_missed"]]
    largest = next(row for row in rows if row["case"] == LARGEST)
    return Report(
        benchmark="placement",
        rows=(*rows, *known),
        goals=(
            Goal(name="gap_to_optimum", value=max(gaps, default=None), goal=0.03, op="<="),
            Goal(
                name="traffic_over_contiguous",
                value=rows[0]["traffic_over_contiguous"],
                goal=0.8,
                op="<=",
            ),
            Goal(name="gain_missed", value=max(missed, default=0.0), goal=0.1, op="<="),
            Goal(name="largest_seconds", value=largest["seconds"], goal=60.0, op="<="),
        ),
    )


if __name__ == "__main__":
    sys.exit(run(measure, {"limit": 20.0}))
