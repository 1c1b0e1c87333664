"""Whether a run that is switched trains the same model as one that is not.

    python -m benchmarks.equivalence [--part fp64,fp32,statistical] [--minutes 20] [--json]
    python -m benchmarks.equivalence --part job-types [--minutes 20] [--json]
    python -m benchmarks.equivalence --part bottleneck [--minutes 20] [--json]

fp64         one job walks every ordered pair of twelve layouts (132 switches, up to 16 ranks)
             and is compared with one rank, beside negative controls that must fail
fp32         50 random switches beside one rank and the same adding up in another order
statistical  20 seeds (MoE 5), 1,000 steps, 30 switches; final losses on 64k tokens
             nobody trained on
job-types    alone: masked diffusion, experts that see noise levels, zero bubble, context parallel
             in a ring, by heads and by layer, test-time training, narrow dispatch to experts; each
             with 50 random switches in fp64 and fp32, and with controls that must fail
bottleneck   alone: 24 seeds that visit a point with narrow dispatch, beside ones that never do
             and a control that must fail; bytes sent

State is kept in `--folder`: after `--minutes` (0: never) it stops, and goes on at the next call. A
figure whose runs are not done yet is not measured. Progress is on stderr. `--fresh` begins anew.
"""

import argparse
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.equivalence import bottleneck_trials, job_types, plan
from benchmarks.equivalence.controls import HARM
from benchmarks.equivalence.job import Arm
from benchmarks.equivalence.run import (
    OutOfTime,
    Runner,
    done,
    lines,
    losses,
    samples,
    say,
    seconds,
)
from benchmarks.report import Goal, Report, run
from examples.pretrain.config import preset
from tests.hook.harness import Zygote
from wattmesh.reconfig.equivalence.checks.samples import same_samples
from wattmesh.reconfig.equivalence.checks.trials import equivalent
from wattmesh.reconfig.equivalence.whole import close_curves, relative

FOLDER = "benchmarks/results/equivalence"
EARLY_STEPS = 100
RESAMPLES = 2000
WINDOW = 100
Rows = list[dict[str, Any]]
Arms = Mapping[str, Arm]
AllArms = Callable[[Path], dict[str, Arms]]
RowsOf = Callable[[Path], tuple[Rows, list[Goal]]]


def fp64_rows(arms: Arms, controls: Arms) -> tuple[Rows, list[Goal]]:
    """The walk, and the controls that must fail in the same columns."""
    alone, walk = arms["one rank"], arms["walk"]
    rows: Rows = []
    rel, wrong, caught = None, None, None
    if done(alone) and done(walk):
        pairs = len(_pairs(walk, lines(walk, "trips")))
        rows += [_layout_row(walk, number, losses(alone)) for number in range(len(walk.layouts))]
        rows.append(whole := _walk_row(walk, alone, pairs))
        rel = max(whole["loss_rel"], whole["state_rel"])
        wrong = whole["mismatches"] + (len(walk.turns) - pairs)
    if done(alone) and all(map(done, controls.values())):
        found = [_harm_row(name, controls, alone) for name in controls if name in HARM]
        honest = _honest_row(controls["none"], alone)
        rows += [honest, *found]
        caught = 0.0 if honest["caught"] else statistics.fmean(each["caught"] for each in found)
    goals = [
        Goal(name="fp64_max_rel", value=rel, goal=1e-12, op="<="),
        Goal(name="roundtrip_mismatches", value=wrong, goal=0, op="=="),
        Goal(name="controls_caught", value=caught, goal=1.0, op="=="),
    ]
    return rows, goals


def _pairs(walk: Arm, trips: Rows) -> set[tuple[int, int]]:
    """Ordered pairs that were really walked: places that the switches came from and went to."""
    arrived = {trip["step"]: trip["to"] for trip in trips}
    before, found = 0, set()
    for step, place in walk.turns:
        if arrived.get(step) == place:
            found.add((before, place))
        before = place
    return found


def _walk_row(walk: Arm, alone: Arm, pairs: int) -> dict[str, Any]:
    """What was found in the whole walk, `pairs` of which were really walked."""
    trips, states = lines(walk, "trips"), lines(walk, "states")
    return {
        "case": f"walk: {pairs} of {len(walk.turns)} ordered pairs",
        "switches": len(trips),
        "steps": walk.steps,
        "loss_rel": close_curves(losses(walk), losses(alone)).measured,
        "state_rel": max(each["measured"] for each in states),
        "mismatches": sum(each["measured"] for each in trips),
        "other_samples": same_samples(samples(walk), samples(alone)).measured,
        "hours": (seconds(walk) + seconds(alone)) / 3600,
    }


def _layout_row(walk: Arm, number: int, alone: Mapping[int, float]) -> dict[str, Any]:
    """What was found while the walk was in one layout."""
    into = [trip for trip in lines(walk, "trips") if trip["to"] == number]
    spans = {trip["step"] + offset for trip in into for offset in range(1, plan.EVERY + 1)}
    mine = {step: loss for step, loss in losses(walk).items() if step in spans}
    left = [each["measured"] for each in lines(walk, "states") if each["step"] in spans]
    return {
        "case": walk.layouts[number] or "one rank",
        "switches": len(into),
        "steps": len(mine),
        "loss_rel": max((relative(mine[each], alone[each]) for each in mine), default=None),
        "state_rel": max(left, default=None),
        "mismatches": sum(trip["measured"] for trip in into),
    }


def _control_row(name: str, arm: Arm, alone: Arm) -> dict[str, Any]:
    """One control: what the table's instruments saw."""
    reference = losses(alone)
    curve = close_curves(losses(arm), {step: reference[step] for step in losses(arm)})
    expected = {step: counts for step, counts in samples(alone).items() if step in losses(arm)}
    trips = lines(arm, "trips")
    return {
        "case": f"control: {name}",
        "switches": len(trips),
        "steps": arm.steps,
        "loss_rel": curve.measured,
        "mismatches": sum(trip["measured"] for trip in trips),
        "other_samples": same_samples(samples(arm), expected).measured,
    }


def _honest_row(arm: Arm, alone: Arm) -> dict[str, Any]:
    """The control that nobody meddled with: nothing may be seen."""
    row = _control_row("none", arm, alone)
    return {**row, "caught": row["loss_rel"] > 1e-12 or _moved(row)}


def _moved(row: Mapping[str, Any]) -> bool:
    return bool(row["mismatches"] > 0 or row["other_samples"] > 0)


def _harm_row(name: str, controls: Arms, alone: Arm) -> dict[str, Any]:
    """A harm: the instruments must see it, and the session itself must take its switch back."""
    row = _control_row(name, controls[name], alone)
    seen = row["loss_rel"] > 1e-12 and _moved(row)
    inside = controls["inside the load"]
    step = int(next(at for at, harm in inside.at_load.items() if harm == name))
    ends = [end for end in lines(inside, "ends") if end["step"] == step]
    taken_back = bool(ends) and ends[0]["state"] == "rolled_back"
    detail = ends[0]["detail"][:60] if ends else ""
    return {**row, "caught": seen and taken_back, "inside_the_load": detail}


def fp32_rows(arms: Arms) -> tuple[Rows, list[Goal]]:
    """Both curves: 50 switches, and another order without any."""
    early, later = None, None
    rows: Rows = []
    if all(map(done, arms.values())):
        alone = losses(arms["one rank"])
        switched = _gaps(losses(arms["50 switches"]), alone)
        order = _gaps(losses(arms["another order"]), alone)
        early = max(switched[step] for step in switched if step <= EARLY_STEPS)
        firsts = range(1, len(alone) + 1, WINDOW)
        windows = [range(first, min(first + WINDOW, len(alone) + 1)) for first in firsts]
        rows = [_window_row(steps, alone, switched, order) for steps in windows]
        after = [row for row, steps in zip(rows, windows, strict=True) if steps[0] > EARLY_STEPS]
        later = max(row["switched_over_order"] for row in after)
        rows.append(_fp32_summary(arms))
    goals = [
        Goal(name="fp32_max_rel", value=early, goal=1e-5, op="<="),
        Goal(name="fp32_later_over_control", value=later, goal=3.0, op="<="),
    ]
    return rows, goals


def _gaps(found: Mapping[int, float], reference: Mapping[int, float]) -> dict[int, float]:
    return {step: relative(found[step], reference[step]) for step in reference}


def _window_row(
    steps: range,
    alone: Mapping[int, float],
    switched: Mapping[int, float],
    order: Mapping[int, float],
) -> dict[str, Any]:
    """One window of both curves; the ratio is of means, for single steps cross zero."""
    ours, theirs = [switched[each] for each in steps], [order[each] for each in steps]
    return {
        "case": f"fp32 steps {steps[0]} to {steps[-1]}",
        "loss": alone[steps[-1]],
        "switched_max": max(ours),
        "order_max": max(theirs),
        "switched_mean": statistics.fmean(ours),
        "order_mean": statistics.fmean(theirs),
        "switched_over_order": statistics.fmean(ours) / max(statistics.fmean(theirs), 1e-300),
    }


def _fp32_summary(arms: Arms) -> dict[str, Any]:
    config = preset("tiny", dtype="fp32")
    ends = lines(arms["50 switches"], "ends")
    trips = lines(arms["50 switches"], "trips")
    return {
        "case": f"fp32: {len(plan.DENSE)} layouts, dense, random walk",
        "switches": sum(each["state"] == "confirmed" for each in ends),
        "steps": plan.FP32_STEPS,
        "mismatches": sum(trip["measured"] for trip in trips),
        "lr": config.learning_rate,
        "clip": config.clip_norm,
        "hours": sum(map(seconds, arms.values())) / 3600,
    }


def trial_rows(kind: str, by_seed: Mapping[int, Arms]) -> tuple[Rows, list[Goal]]:
    """Final losses by seed, and the ratio of medians."""
    finals = {
        seed: {name: lines(arm, "held")[-1]["loss"] for name, arm in arms.items()}
        for seed, arms in by_seed.items()
        if all(map(done, arms.values()))
    }
    rows = [_seed_row(kind, seed, by_seed[seed], final) for seed, final in finals.items()]
    ratio = None
    if len(finals) == len(by_seed):
        hours = sum(seconds(arm) for arms in by_seed.values() for arm in arms.values()) / 3600
        rows.append(row := {**_median_row(kind, finals), "hours": hours})
        ratio = row["switched_over_order"]
    name = "statistical_over_control" if kind == "dense" else "statistical_moe_over_control"
    return rows, [Goal(name=name, value=ratio, goal=2.0, op="<=")]


def _median_row(kind: str, finals: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """How far apart the seeds' final losses are in the middle, switched and in another order."""
    alone = {seed: each["one rank"] for seed, each in finals.items()}
    switched = {seed: each["30 switches"] for seed, each in finals.items()}
    order = {seed: each["another order"] for seed, each in finals.items()}
    pairs = [(abs(switched[seed] - alone[seed]), abs(order[seed] - alone[seed])) for seed in finals]
    ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
    low, high = _interval(pairs)
    return {
        "case": f"{kind}: median of {len(finals)} seeds",
        "switched_apart": ours,
        "order_apart": theirs,
        "switched_over_order": _over(pairs),
        "ratio_low_95": low,
        "ratio_high_95": high,
        "tost_p": equivalent(switched, alone).measured,
        "between_seeds_std": statistics.stdev(alone.values()),
    }


def _over(pairs: Sequence[tuple[float, float]]) -> float:
    """Give the median of the first over that of the second."""
    ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
    return ours / theirs if theirs else float("inf")


def _interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Give the 95 % bootstrap interval of that ratio over the seeds."""
    drawn = random.Random(0)
    ratios = sorted(_over(drawn.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return ratios[RESAMPLES // 40], ratios[-RESAMPLES // 40 - 1]


def _seed_row(kind: str, seed: int, arms: Arms, final: Mapping[str, float]) -> dict[str, Any]:
    ends = lines(arms["30 switches"], "ends")
    return {
        "case": f"{kind} seed {seed}",
        "switches": sum(each["state"] == "confirmed" for each in ends),
        "steps": plan.TRIAL_STEPS,
        "held_loss": final["one rank"],
        "switched_apart": abs(final["30 switches"] - final["one rank"]),
        "order_apart": abs(final["another order"] - final["one rank"]),
        "mismatches": sum(trip["measured"] for trip in lines(arms["30 switches"], "trips")),
        "hours": sum(map(seconds, arms.values())) / 3600,
    }


def measure(chosen: argparse.Namespace) -> Report:
    """Compare runs that are switched with runs that are not."""
    folder = Path(chosen.folder).absolute()
    if chosen.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    parts = chosen.part.split(",")
    if len(parts) == 1 and parts[0] in ALONE:
        all_arms, rows_of = ALONE[parts[0]]
        _carry_out(list(all_arms(folder).items()), chosen.minutes)
        rows, goals = rows_of(folder)
        return Report(benchmark="equivalence", rows=tuple(rows), goals=tuple(goals))
    fp64, controls = plan.fp64_arms(folder), plan.control_arms(folder)
    fp32 = plan.fp32_arms(folder)
    trials = {
        kind: {seed: plan.trial_arms(folder, kind=kind, seed=seed) for seed in range(seeds)}
        for kind, seeds in plan.SEEDS.items()
    }
    alone, walk = ({name: fp64[name]} for name in ("one rank", "walk"))
    parts_todo: dict[str, list[tuple[str, Arms]]] = {
        "fp64": [("fp64", alone), ("control", controls), ("fp64", walk)],
        "fp32": [("fp32", fp32)],
        "statistical": [
            (f"{kind} seed {seed}", arms)
            for kind, by_seed in trials.items()
            for seed, arms in by_seed.items()
        ],
    }
    _carry_out(
        [each for part, work in parts_todo.items() if part in parts for each in work],
        chosen.minutes,
    )
    rows, goals = fp64_rows(fp64, controls)
    for more, held in (fp32_rows(fp32), *(trial_rows(kind, trials[kind]) for kind in trials)):
        rows, goals = rows + more, goals + held
    return Report(benchmark="equivalence", rows=tuple(rows), goals=tuple(goals))


def _carry_out(todo: list[tuple[str, Arms]], minutes: float) -> None:
    """Train whatever is not trained yet, while there is time."""
    left = [
        (f"{part}, {name}", arm)
        for part, arms in todo
        for name, arm in arms.items()
        if not done(arm)
    ]
    if not left:
        return
    zygote = Zygote()
    runner = Runner(zygote, minutes)
    try:
        for name, arm in left:
            runner.carry_out(name, arm)
    except OutOfTime:
        say("out of time; the same command goes on from here")
    finally:
        # It ends by itself when nobody speaks to it any more, on a busy machine later than asked.
        with suppress(subprocess.TimeoutExpired):
            zygote.close()


PARTS = "fp64,fp32,statistical"
ALONE: dict[str, tuple[AllArms, RowsOf]] = {
    "job-types": (job_types.all_arms, job_types.job_type_rows),
    "bottleneck": (bottleneck_trials.all_arms, bottleneck_trials.bottleneck_rows),
}

if __name__ == "__main__":
    sys.exit(run(measure, {"part": PARTS, "minutes": 20.0, "folder": FOLDER, "fresh": False}))
