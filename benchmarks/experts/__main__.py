"""Routers that know what GPUs cost: held-back loss, modelled layer energy, largest load.

    python -m benchmarks.experts [--json] [--seeds 5] [--shared 100] [--own 80]

The example's model with 16 experts, 2 per token, on Python's own source (`experts_train`), by mode
and strength and seed. All routers of a seed go on from one state trained for `--shared` steps
without costs, and losses are paired with the one that goes on without. The GPUs are assumed, not
measured: 4 H100 + 4 A100 with the vendors' watts (`expert_groups`), so energy is modelled layer
energy, and never the sum of cost times load. `as launched`: two experts on every GPU. `by speed`:
as many as its speed allows, experts where the router was told they are. `placed`: moved by what was
recorded at the end. Rivals: one expert less for each token, and tilts of the same strengths towards
experts drawn by chance, anew for each seed and so that they tell nothing of the costs. Inertness is
shown on 8 H100 as meters would read them, by all bits of the trained models. Strengths were chosen
on seeds 100 and 101, in runs of 300 steps from scratch. Overhead: the router's forward pass beside
a plain one's.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import multiprocessing
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.experts.groups import group, problem
from benchmarks.experts.overhead import overhead_rows
from benchmarks.experts.train import EXPERTS, PER_TOKEN, Steps, Trained, Variant, in_child
from benchmarks.report import Goal, Report, run
from wattmesh.integrations.pytorch.experts.router import RouterMode
from wattmesh.policies.experts.costs import ClockAndLimit, OfflineSweep, begin
from wattmesh.policies.experts.counts import balanced_counts
from wattmesh.policies.experts.layer_energy import ExpertGpu
from wattmesh.policies.experts.placement.affinity import count_choices
from wattmesh.policies.experts.placement.objective import cost
from wattmesh.policies.experts.placement.problem import PlacementProblem, contiguous
from wattmesh.policies.experts.placement.search import place
from wattmesh.policies.experts.scores import GpuTime, scored

MIXED = group((4, "h100"), (4, "a100"))
EQUAL = group((8, "h100"))
METER_ERROR = 0.01
LOAD_CAP = 0.15
"""How much longer than balanced a GPU may take, in placements: as the router's cap on loads."""

INERT_STEPS = Steps(shared=15, own=15)
WORKERS = 2
HEADLINE = "tilt 0.2"
TILTS = (0.1, 0.2)
DEALS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Energies:
    """Modelled energy of all layers for the recorded tokens, by where experts lie."""

    launched_j: float
    by_speed_j: float
    placed_j: float
    crossings_over_contiguous: float


def costs_of(gpus: tuple[ExpertGpu, ...], *, as_read: int | None = None) -> tuple[float, ...]:
    """Score the experts of a group: each as the GPU that holds it, counts by speed.

    Args:
        gpus: of the group.
        as_read: seed of what meters would read of these GPUs: 1 % around what they are, and one of
            them late, because it got 3 % more rows; None: exactly what they are.
    """
    draw = np.random.default_rng(as_read)
    error = 0.0 if as_read is None else METER_ERROR
    known = {
        gpu.name: begin(
            OfflineSweep(
                joules_per_token=gpu.joules_per_token * (1 + error * draw.standard_normal()),
                idle_w=gpu.idle_w,
                joules_per_token_deviation=METER_ERROR * gpu.joules_per_token,
                idle_w_deviation=1.0,
            ),
            ClockAndLimit(),
        )
        for gpu in gpus
    }
    names = [gpu.name for gpu in gpus]
    late = names[int(draw.integers(len(names)))]
    times = {
        gpu.name: GpuTime(
            seconds=(1.03 if gpu.name == late else 1.0) / gpu.tokens_per_s,
            seconds_per_token=1.0 / gpu.tokens_per_s,
        )
        for gpu in gpus
    }
    scores = scored(names, known, times=None if as_read is None else times).by_gpu
    counts = balanced_counts(EXPERTS, [gpu.tokens_per_s for gpu in gpus])
    return tuple(
        scores[name] for name, count in zip(names, counts, strict=True) for _ in range(count)
    )


def drawn_by_chance(costs: Sequence[float], seed: int) -> tuple[float, ...]:
    """Deal the costs to experts anew, so that the deal tells nothing of what experts cost.

    Of some hundred permutations, the one that correlates least with the costs. A single one often
    correlates by a third with so few experts, and then it is a third of the router it is to rival.
    """
    draw = np.random.default_rng(seed)
    mean = float(np.mean(costs))
    deals = [draw.permutation(costs) for _ in range(DEALS)]
    told = [abs(float(np.dot(np.subtract(costs, mean), deal - mean))) for deal in deals]
    return tuple(float(each) for each in deals[int(np.argmin(told))])


def variants(costs: tuple[float, ...], seed: int) -> list[Variant]:
    """List what is trained; the first one is what all others are compared with."""
    by_chance = drawn_by_chance(costs, seed)
    return [
        Variant(name="off"),
        Variant(
            name="soft 0.5, auxiliary loss",
            mode=RouterMode.SOFT,
            strength=0.5,
            costs=costs,
            bias_rate=0.0,
            auxiliary=0.01,
        ),
        Variant(name="soft 0.5, loss-free", mode=RouterMode.SOFT, strength=0.5, costs=costs),
        *(
            Variant(name=f"tilt {strength}", mode=RouterMode.TILT, strength=strength, costs=costs)
            for strength in TILTS
        ),
        *(
            Variant(name=f"dual {strength}", mode=RouterMode.DUAL, strength=strength, costs=costs)
            for strength in (0.01, 0.04)
        ),
        Variant(name="rival: one expert less", per_token=PER_TOKEN - 1),
        *(
            Variant(
                name=f"rival: tilt {strength} by chance",
                mode=RouterMode.TILT,
                strength=strength,
                costs=by_chance,
            )
            for strength in TILTS
        ),
    ]


def energies(trained: Trained) -> Energies:
    """Model the energy of what a trained router chose, on the mixed group."""
    counts = count_choices(trained.chosen, EXPERTS)
    asked = problem(counts, MIXED, tolerance=LOAD_CAP)
    launched = PlacementProblem(
        counts=counts,
        gpus=MIXED,
        slots=(EXPERTS // len(MIXED),) * len(MIXED),
        crossing_j=asked.crossing_j,
        near_crossing_j=asked.near_crossing_j,
    )
    before, placed = cost(launched, contiguous(launched)), cost(asked, place(asked))
    return Energies(
        launched_j=before.layer_energy_j,
        by_speed_j=cost(asked, contiguous(asked)).layer_energy_j,
        placed_j=placed.layer_energy_j,
        crossings_over_contiguous=placed.crossings / max(1.0, before.crossings),
    )


def rows_of(found: Sequence[Trained]) -> list[dict[str, Any]]:
    """One row for each variant: means over seeds, paired with `off` of the same seed."""
    first = found[0].variant.name
    plain = {each.seed: each for each in found if each.variant.name == first}
    base = {seed: energies(each).launched_j for seed, each in plain.items()}
    rows = []
    for name in dict.fromkeys(each.variant.name for each in found):
        mine = [each for each in found if each.variant.name == name]
        modelled = [energies(each) for each in mine]
        more = [each.held_loss / plain[each.seed].held_loss - 1 for each in mine]
        energy = {
            column: statistics.fmean(
                getattr(each, column) / base[one.seed]
                for each, one in zip(modelled, mine, strict=True)
            )
            for column in ("launched_j", "by_speed_j", "placed_j")
        }
        rows.append(
            {
                "router": name,
                "seeds": len(mine),
                "held_loss": statistics.fmean(each.held_loss for each in mine),
                "loss_increase": statistics.fmean(more),
                "loss_increase_error": _error(more),
                "energy_as_launched": energy["launched_j"],
                "energy_by_speed": energy["by_speed_j"],
                "energy_placed": energy["placed_j"],
                "traffic_placed": statistics.fmean(
                    each.crossings_over_contiguous for each in modelled
                ),
                "largest_load": statistics.fmean(largest_load(each) for each in mine),
            }
        )
    return rows


def largest_load(trained: Trained) -> float:
    """The busiest expert of all layers, over the mean."""
    counts = [np.bincount(each.ravel(), minlength=EXPERTS) for each in trained.chosen]
    return max(float(each.max() / each.mean()) for each in counts)


def dominated(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name leaning routers that a rival beats in loss and in energy, experts where they were told.

    By speed and not placed: a placement moves whatever is hot to cheap GPUs, so that after it a
    tilt by chance is as good as any.
    """
    rivals = [row for row in rows if row["router"].startswith("rival")]
    ours = [row for row in rows if row["router"].startswith(("tilt", "dual"))]
    return [
        row["router"]
        for row in ours
        if any(
            rival["held_loss"] <= row["held_loss"]
            and rival["energy_by_speed"] <= row["energy_by_speed"]
            for rival in rivals
        )
    ]


def inert(pool: ProcessPoolExecutor) -> tuple[bool, int]:
    """Train all modes on equal GPUs; say whether all bits are those of `off`, and how many were.

    Costs are what meters would read of equal GPUs, which is never quite the same.
    """
    asked = [
        Variant(
            name=f"{mode} {strength}",
            mode=mode,
            strength=strength,
            costs=costs_of(EQUAL, as_read=seed),
        )
        for mode in RouterMode
        for seed, strength in enumerate((0.2, 2.0))
    ]
    plain, *others = pool.map(
        in_child, [(each, 0, INERT_STEPS) for each in (Variant(name="off"), *asked)]
    )
    same = [each.digest == plain.digest and each.losses == plain.losses for each in others]
    return all(same), len(same)


def measure(chosen: argparse.Namespace) -> Report:
    """Train `--seeds` of each router, two at a time."""
    jobs = [
        (variant, seed, Steps(shared=chosen.shared, own=chosen.own))
        for seed in range(chosen.seeds)
        for variant in variants(costs_of(MIXED), seed)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        same, compared = inert(pool)
        rows = rows_of(list(pool.map(in_child, jobs)))
    headline = next(row for row in rows if row["router"] == HEADLINE)
    overheads = overhead_rows()
    beaten = dominated(rows)
    said = {"router": f"{compared} routers on 8 h100", "bitwise_off": same}
    return Report(
        benchmark="experts",
        rows=(*rows, said, *overheads),
        goals=(
            Goal(
                name="layer_energy_saving",
                value=1 - headline["energy_placed"],
                goal=0.20,
                op=">=",
            ),
            Goal(name="loss_increase", value=headline["loss_increase"], goal=0.005, op="<="),
            Goal(name="homogeneous_inert", value=float(same), goal=1, op="=="),
            Goal(name="dominated", value=float(len(beaten)), goal=0, op="=="),
            Goal(
                name="router_overhead",
                value=max(row["router_overhead"] for row in overheads),
                goal=0.02,
                op="<=",
            ),
        ),
    )


def _error(values: Sequence[float]) -> float | None:
    """Give the standard error of a mean; None of fewer than two."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / math.sqrt(len(values))


if __name__ == "__main__":
    sys.exit(run(measure, {"seeds": 5, "shared": 100, "own": 80}))
