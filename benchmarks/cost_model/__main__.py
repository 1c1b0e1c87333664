"""How well the cost model predicts measured training runs that it has not seen.

    python -m benchmarks.cost_model [--json] [--data DIR] [--shuffles 2] [--worst 0]

DIR holds `train_configs.csv` and `vtrain_single_node.csv`. Three questions, five folds each, groups
dealt anew `--shuffles` times:

* `by group`: runs of one (model, GPU, precision class, GPU count, TP, PP, CP, EP) stay together, so
  that repeats of a configuration are never on both sides;
* `by cluster`: all runs of one (model, GPU) stay together;
* `one measured row`: the same, then one run of each left out (model, GPU) is given back, chosen at
  random, and its others are predicted; the physics stays as it was fitted without it. `one measured
  row, same software` counts those that ran the same software, release and number format as it.

All that a prediction rests on is learned anew in each fold from the others: the physics, the known
errors, and how alike runs err.
Memory and watts are not fitted here: their few constants were set on the very rows they are
scored on, so these errors say how well the formulas can fit, not how well they foresee.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau  # type: ignore[import-untyped]

from benchmarks.cost_model.folds import (
    CLUSTER,
    GROUP,
    CrossValidated,
    RowOut,
    Runs,
    Scored,
    cross_validate,
    load,
    numbered,
    percent,
    start_of_fits,
)
from benchmarks.cost_model.peer import beside
from benchmarks.report import Goal, Report, run
from wattmesh.policies.parallelism.memory import memory
from wattmesh.policies.parallelism.training_rows import NEEDED, read_rows

Array: TypeAlias = NDArray[np.float64]

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = str(REPOSITORY.parent / "shared" / "data" / "configs")
KINDS = ("all", "dense", "experts")
RANKED = ("model", "gpu", "num_gpus", "global_batch")
RANKED_BY = "vtrain"
"""Groups of configurations of one job, of which the fastest is sought: those of this source."""

GIB = 2**30


def measure(chosen: argparse.Namespace) -> Report:
    """Cross-validate the cost model on measured runs."""
    runs = load(Path(chosen.data))
    start = start_of_fits(runs)
    groups, clusters = (numbered(runs.rows, columns) for columns in (GROUP, CLUSTER))
    by_group = cross_validate(runs, groups, start, chosen.shuffles, give_back=False)
    by_cluster = cross_validate(runs, clusters, start, chosen.shuffles, give_back=True)
    return report(runs, by_group.left_out, by_cluster, chosen.worst)


def report(runs: Runs, by_group: Scored, by_cluster: CrossValidated, worst: int) -> Report:
    """Put rows and goals together."""
    parts = {
        "by group": by_group,
        "by cluster": by_cluster.left_out,
        "one measured row": by_cluster.one_given_back,
        "one measured row, same software": same_software(by_cluster.one_given_back, runs),
    }
    errors = {
        (name, kind): error_row(name, kind, scored, runs)
        for name, scored in parts.items()
        for kind in KINDS
    }
    ranks = [*rankings("by group", by_group, runs)]
    ranks += rankings("by cluster", by_cluster.left_out, runs)
    held, energy = memory_row(runs), energy_row(by_group, runs)
    rows: list[RowOut] = [answered_row(runs), *errors.values(), *ranks, held, energy]
    rows.append(floor_row("each model on each GPU", by_cluster.left_out, runs, CLUSTER))
    rows.append(floor_row("each configuration, by release", by_cluster.left_out, runs, SAME))
    rows.append(spread_row(runs))
    rows += beside(by_group, runs)
    rows += worst_rows(by_group, runs, worst)
    return Report(
        benchmark="cost_model", rows=tuple(rows), goals=goals(errors, ranks, held, energy)
    )


def goals(
    errors: Mapping[tuple[str, str], RowOut],
    ranks: Sequence[RowOut],
    held: RowOut,
    energy: RowOut,
) -> tuple[Goal, ...]:
    """Judge; percent as percent. Ranks are those of `by group`."""
    ours = [each for each in ranks if each["left_out"] == "by group"]
    dense, experts = errors["by group", "dense"], errors["by group", "experts"]
    one, every = errors["one measured row", "all"], errors["by group", "all"]
    tau = float(np.mean([each["kendall_tau"] for each in ours])) if ours else None
    regret = float(np.mean([each["top1_regret_percent"] for each in ours])) if ours else None
    inside = every["in_90_interval"]
    table: tuple[tuple[str, float | None, float, Any], ...] = (
        ("mape_dense", dense["mape"], 7, "<="),
        ("median_dense", dense["median"], 5, "<="),
        ("mape_moe", experts["mape"], 15, "<="),
        ("mape_residual", one["mape"], 5, "<="),
        ("kendall_tau", tau, 0.7, ">="),
        ("top1_regret_percent", regret, 2, "<="),
        ("mape_memory", held["mape"], 3, "<="),
        ("false_fits", held["false_fits"], 0, "=="),
        ("mape_energy", energy["mape"], 8, "<="),
        ("interval_holds_at_least", inside, 85, ">="),
        ("interval_holds_at_most", inside, 95, "<="),
    )
    return tuple(Goal(name=name, value=value, goal=goal, op=op) for name, value, goal, op in table)


def of_kind(scored: Scored, kind: str, runs: Runs) -> NDArray[np.bool_]:
    """Choose scores of dense models, of models with experts, or all."""
    experts = runs.experts[scored.which]
    return np.ones(len(experts), bool) if kind == "all" else experts == (kind == "experts")


def error_row(name: str, kind: str, scored: Scored, runs: Runs) -> RowOut:
    """Sum up the errors of one kind of model."""
    chosen = of_kind(scored, kind, runs)
    inside = scored.inside[chosen]
    return {
        "left_out": name,
        "models": kind,
        "runs": len(np.unique(scored.which[chosen])),
        **percent(scored.error[chosen]),
        "physics_alone_mape": percent(scored.physics[chosen])["mape"],
        "in_90_interval": 100 * float(inside.mean()) if len(inside) else None,
    }


def rankings(name: str, scored: Scored, runs: Runs) -> Iterator[RowOut]:
    """Say how well the fastest of a job's configurations was found, for each group of them."""
    chosen = np.array([runs.rows[at]["model"].startswith(RANKED_BY) for at in scored.which], bool)
    which = np.unique(scored.which[chosen])
    texts = [runs.rows[at] for at in which]
    if not texts:
        return
    # Each shuffle predicted each run once: their mean ranks it. `configs search` ranks by the
    # physics alone, because runs of others would move all layouts of a job alike.
    seconds = runs.measured.seconds[which]
    corrected = np.array([scored.step_s[scored.which == at].mean() for at in which])
    physics = np.array([scored.physics[scored.which == at].mean() for at in which])
    predicted = (1 + physics) * seconds
    of = numbered(texts, RANKED)
    for group in np.unique(of):
        members = np.flatnonzero(of == group)
        if len(members) < 3:
            continue
        text, fastest = texts[members[0]], seconds[members].min()
        found = seconds[members[np.argmin(predicted[members])]]
        median = float(np.median(seconds[members]))
        otherwise = seconds[members[np.argmin(corrected[members])]]
        yield {
            "left_out": name,
            "ranked": " ".join(text[column] for column in RANKED),
            "configurations": len(members),
            "kendall_tau": float(kendalltau(predicted[members], seconds[members]).statistic),
            "top1_regret_percent": 100 * (float(found / fastest) - 1),
            "corrected_kendall_tau": float(
                kendalltau(corrected[members], seconds[members]).statistic
            ),
            "corrected_top1_regret_percent": 100 * (float(otherwise / fastest) - 1),
            "median_regret_percent": 100 * (median / float(fastest) - 1),
        }


def memory_row(runs: Runs) -> RowOut:
    """Compare peaks that were published."""
    stated = [row for row in runs.main if (row.get("mem_gib") or "").strip()]
    read = read_rows(stated)
    measured = np.array([float(stated[at]["mem_gib"]) for at in read.kept])
    found = np.asarray(memory(read.setups).total) / GIB
    room = np.asarray(read.setups.hardware.memory_bytes) / GIB
    low = found < measured
    return {
        "memory": "published peaks, not cross-validated",
        "runs": len(measured),
        "of": len(stated),
        **percent(found / measured - 1),
        "false_fits": int(((found <= room) & (measured > room)).sum()),
        "predicted_below_measured": int(low.sum()),
        "furthest_below_percent": 100 * float((1 - found / measured).max(initial=0.0)),
    }


SAME = (*GROUP, "vpp", "zero", "micro_batch", "global_batch", "recompute", "layers", "seq_len")
"""Columns in which two runs of one configuration agree: they differ in software only."""


def floor_row(name: str, scored: Scored, runs: Runs, columns: Sequence[str]) -> RowOut:
    """Say what is left when each group's errors are divided by the best one factor for them.

    No correction by one factor, from however many measured rows, can do better on these errors.
    """
    which, first = np.unique(scored.which, return_index=True)
    errors = np.log1p(scored.error[first])
    of = numbered([runs.rows[at] for at in which], columns)
    left: list[Array] = []
    for group in np.unique(of):
        members = errors[of == group]
        if len(members) > 1:
            tried = np.exp(members[None, :] - members[:, None]) - 1
            left.append(tried[int(np.abs(tried).sum(axis=1).argmin())])
    return {"floor_of_one_factor": name, **percent(np.concatenate(left) if left else errors[:0])}


def same_software(scored: Scored, runs: Runs) -> Scored:
    """Choose scores of runs with the software, release and number format of the one given back."""
    tags = runs.measured.rows.tags
    stacks = [(each.software, each.release_years, each.number_format) for each in tags]
    pairs = zip(scored.which, scored.given, strict=True)
    alike = np.array([stacks[one] == stacks[given] for one, given in pairs], dtype=bool)
    return Scored(**{name: getattr(scored, name)[alike] for name in Scored.__slots__})


def spread_row(runs: Runs) -> RowOut:
    """Say how far apart runs of one configuration under one release are, in percent."""
    judged = np.flatnonzero(runs.judged)
    rows = [runs.rows[at] for at in judged]
    of = numbered(rows, (*SAME, "framework", "recompute"))
    releases = [runs.measured.rows.tags[at].release_years for at in judged]
    seconds = runs.measured.seconds[judged]
    apart = [
        abs(seconds[one] / seconds[other] - 1)
        for other in range(len(rows))
        for one in range(other)
        if of[one] == of[other] and releases[one] == releases[other]
    ]
    return {"repeats": "one configuration, one release", "pairs": len(apart)} | {
        name: value for name, value in percent(np.array(apart)).items() if name != "bias"
    }


def energy_row(scored: Scored, runs: Runs) -> RowOut:
    """Compare joules per token where watts were published: of the wall, switches left out."""
    stated = [
        at
        for at, index in enumerate(scored.which)
        if (runs.rows[index].get("energy_j_per_token") or "").strip()
    ]
    which = scored.which[stated]
    measured = np.array([float(runs.rows[at]["energy_j_per_token"]) for at in which])
    found = scored.j_per_token[stated]
    slower = runs.measured.seconds[which] / scored.step_s[stated]
    with_time = found * slower / measured - 1
    every = sum(1 for row in runs.main if (row.get("energy_j_per_token") or "").strip())
    return {
        "energy": "J/token at the wall, watts not cross-validated",
        "runs": len(np.unique(which)),
        "of": every,
        **percent(found / measured - 1),
        "mape_with_measured_time": percent(with_time)["mape"],
        "bias_with_measured_time": percent(with_time)["bias"],
    }


def answered_row(runs: Runs) -> RowOut:
    """Say how many rows are predicted, of those that have what is needed."""
    able = [row for row in runs.main if all((row.get(name) or "").strip() for name in NEEDED)]
    return {
        "rows": len(runs.main),
        "with_needed_inputs": len(able),
        "predicted": len(read_rows(able).kept),
        "timed": int(runs.judged.sum()),
    }


def worst_rows(scored: Scored, runs: Runs, count: int) -> Iterator[RowOut]:
    """Show the runs that are furthest off, by the logarithm of predicted over measured."""
    which = np.unique(scored.which)
    error = np.array([np.log1p(scored.error[scored.which == at]).mean() for at in which])
    physics = np.array([np.log1p(scored.physics[scored.which == at]).mean() for at in which])
    for at in np.argsort(-np.abs(error))[:count]:
        row = runs.rows[which[at]]
        layout = ("num_gpus", "tp", "pp", "vpp", "cp", "ep", "zero", "micro_batch", "global_batch")
        yield {
            "worst": row["row_id"],
            "predicted_over_measured": float(np.exp(error[at])),
            "physics_over_measured": float(np.exp(physics[at])),
            **{name: row[name] for name in ("model", "gpu", "precision", "framework")},
            "layout": " ".join(f"{name}={row[name]}" for name in layout if row[name]),
            "recompute": row["recompute"],
        }


if __name__ == "__main__":
    sys.exit(run(measure, {"data": DATA, "shuffles": 2, "worst": 0}))
