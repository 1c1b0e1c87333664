"""Predictions of measured runs that the cost model did not see: by groups, by clusters, by one row.

Invariant: everything that a prediction rests on comes from other groups only: physics, known errors
and how alike runs err. Where a fit begins is the only thing that is common to all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattmesh.controller.cost_model.csv_files import read_table
from wattmesh.policies.parallelism.energy import PowerShares
from wattmesh.policies.parallelism.fit import fit
from wattmesh.policies.parallelism.measured import (
    Measured,
    fit_model,
    measured_rows,
    part,
    seconds_of,
    shared_weights,
    with_measurements,
)
from wattmesh.policies.parallelism.parameters import Parameters
from wattmesh.policies.parallelism.predict import CostModel, predict
from wattmesh.policies.parallelism.row_fields import Row

Array: TypeAlias = NDArray[np.float64]
RowOut: TypeAlias = dict[str, Any]

MAIN, SINGLE_NODE = "train_configs.csv", "vtrain_single_node.csv"
SINGLE_NODE_WEIGHT = 0.2
"""Rows of one small cluster, 720 of them, count a fifth, as in what is shipped."""

FOLDS = 5
GIVEN = 3
"""Runs of a cluster that are given back, each alone: which one it is moves the figure by half a
point."""

GROUP = ("model", "gpu", "precision", "num_gpus", "tp", "pp", "cp", "ep")
CLUSTER = ("model", "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Measured runs that can be predicted.

    Attributes:
        main: all rows of `MAIN`, whether or not they can be predicted.
        rows: the text of each of `measured`. `judged`: those of `MAIN`, whose errors count.
    """

    main: tuple[Row, ...]
    rows: tuple[Row, ...]
    measured: Measured
    judged: NDArray[np.bool_]

    @property
    def experts(self) -> NDArray[np.bool_]:
        """Which of them have experts."""
        return np.array([bool(tags.has_experts) for tags in self.measured.rows.tags], dtype=bool)


def load(folder: Path) -> Runs:
    """Read both tables.

    Raises:
        SystemExit: the folder does not have them.
    """
    missing = [name for name in (MAIN, SINGLE_NODE) if not (folder / name).is_file()]
    if missing:
        raise SystemExit(f"no {' and no '.join(missing)} in {folder}: name their folder by --data")
    _, main = read_table(folder / MAIN)
    _, single = read_table(folder / SINGLE_NODE)
    both = [(row, 1.0) for row in main] + [(row, SINGLE_NODE_WEIGHT) for row in single]
    timed = [(row, weight) for row, weight in both if seconds_of(row) > 0]
    texts = [row for row, _ in timed]
    measured = measured_rows(texts, np.array([weight for _, weight in timed]))
    return Runs(
        main=main,
        rows=tuple(texts[index] for index in measured.rows.kept),
        measured=measured,
        judged=measured.weights >= 1,
    )


def precision_class(precision: str) -> str:
    """Give the class of a number format: all 8 bit formats are one."""
    return next((each for each in ("fp4", "fp8") if each in precision), "bf16")


def numbered(rows: Sequence[Row], columns: Sequence[str]) -> NDArray[np.int64]:
    """Number rows by what they have in common; shape (n,), from 0."""
    keys = [
        "|".join(
            precision_class(row[name]) if name == "precision" else row[name] for name in columns
        )
        for row in rows
    ]
    return np.unique(np.array(keys), return_inverse=True)[1].astype(np.int64)


def folds(groups: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Deal groups to folds at random; shape (n,)."""
    dealt = np.random.default_rng(seed).permutation(int(groups.max()) + 1) % FOLDS
    return np.asarray(dealt[groups], dtype=np.int64)


def percent(errors: Array) -> RowOut:
    """Sum errors up, in percent; nothing where there are none."""
    if not len(errors):
        return {"mape": None, "median": None, "p90": None, "bias": None}
    size = 100 * np.abs(errors)
    return {
        "mape": float(size.mean()),
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "bias": 100 * float(errors.mean()),
    }


def start_of_fits(runs: Runs) -> Parameters:
    """Fit once on everything: folds begin there, which saves them most of their steps."""
    measured = runs.measured
    return fit(measured.rows.setups, measured.seconds, weights=shared_weights(measured))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Predictions of runs that were left out; one entry for each run and shuffle.

    Attributes:
        which: index of the run. `error`: predicted / measured - 1; `physics`: the same before
            known errors. `inside`: 1 where the interval holds what was measured.
        j_per_token: predicted of the predicted time. `step_s`: predicted.
        given: the run of the same cluster that had been measured; -1 where none had.
    """

    which: NDArray[np.int64]
    error: Array
    physics: Array
    inside: Array
    step_s: Array
    j_per_token: Array
    given: NDArray[np.int64]


def refit(runs: Runs, which: NDArray[np.int64], start: Parameters) -> CostModel:
    """Fit a cost model to some runs, as the shipped one is: how alike runs err is learned anew."""
    return fit_model(
        part(runs.measured, which),
        shares=PowerShares(),
        start=start,
    )


def score(runs: Runs, which: NDArray[np.int64], model: CostModel) -> Scored:
    """Predict some runs and compare."""
    chosen = part(runs.measured, which)
    found = predict(chosen.rows, model)
    seconds = chosen.seconds
    return Scored(
        which=which,
        error=found.step_s / seconds - 1,
        physics=found.step_s / found.corrected / seconds - 1,
        inside=((found.low_s <= seconds) & (seconds <= found.high_s)).astype(np.float64),
        step_s=found.step_s,
        j_per_token=found.j_per_token,
        given=np.full(len(which), -1, dtype=np.int64),
    )


def joined(parts: Sequence[Scored]) -> Scored:
    """Put scores together."""
    return Scored(
        which=np.concatenate([each.which for each in parts]),
        error=np.concatenate([each.error for each in parts]),
        physics=np.concatenate([each.physics for each in parts]),
        inside=np.concatenate([each.inside for each in parts]),
        step_s=np.concatenate([each.step_s for each in parts]),
        j_per_token=np.concatenate([each.j_per_token for each in parts]),
        given=np.concatenate([each.given for each in parts]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossValidated:
    """What folds gave: each judged run left out, and one run of its cluster given back."""

    left_out: Scored
    one_given_back: Scored


def cross_validate(
    runs: Runs, groups: NDArray[np.int64], start: Parameters, shuffles: int, *, give_back: bool
) -> CrossValidated:
    """Predict every run by models that its group was left out of.

    Args:
        runs: all of them. `groups`: number of each one's group.
        groups: what stays together.
        start: where fits begin.
        shuffles: how often groups are dealt anew.
        give_back: also give one run of each group back, and predict the others of it.
    """
    left_out, back = [], []
    for seed in range(shuffles):
        dealt = folds(groups, seed)
        for fold in range(FOLDS):
            model = refit(runs, np.flatnonzero(dealt != fold), start)
            held = np.flatnonzero((dealt == fold) & runs.judged)
            left_out.append(score(runs, held, model))
            if give_back:
                back += list(_given_back(runs, held, groups, model, seed))
    return CrossValidated(
        left_out=joined(left_out), one_given_back=joined(back or [_nothing(left_out[0])])
    )


def _nothing(like: Scored) -> Scored:
    fields = {name: getattr(like, name)[:0] for name in Scored.__slots__}
    return Scored(**fields)


def _given_back(
    runs: Runs, held: NDArray[np.int64], groups: NDArray[np.int64], model: CostModel, seed: int
) -> Iterator[Scored]:
    """Give one run of each group back and predict its others; up to `GIVEN` times, each alone."""
    draw = np.random.default_rng(seed)
    for group in np.unique(groups[held]):
        members = held[groups[held] == group]
        if len(members) < 2:
            continue
        for chosen in draw.permutation(len(members))[:GIVEN]:
            given, others = members[chosen : chosen + 1], np.delete(members, chosen)
            found = score(runs, others, with_measurements(model, part(runs.measured, given)))
            yield replace(found, given=np.full(len(others), int(given[0]), dtype=np.int64))
