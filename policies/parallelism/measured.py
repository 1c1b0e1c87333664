"""Measured training runs, and the cost model that they make. Pure. Imports SciPy."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.parallelism.energy import PowerShares
from wattmesh.policies.parallelism.fit import fit
from wattmesh.policies.parallelism.parameters import Parameters
from wattmesh.policies.parallelism.predict import CostModel, physics_errors
from wattmesh.policies.parallelism.residuals.error_covariance import Habits, with_phases
from wattmesh.policies.parallelism.residuals.known_errors import KnownErrors, learn, observe
from wattmesh.policies.parallelism.row_fields import SHOWN, Row, text_of
from wattmesh.policies.parallelism.step_time import step_time
from wattmesh.policies.parallelism.training_rows import Tags, TrainingRows, read_rows, take

EVERY = 12
"""Of rows that count less than one, each so-manieth is kept as a neighbour: they are many alike."""

FOLDS = 5
"""Parts into which clusters are dealt, to see how physics err on what they were not fitted to."""

MOST_APART = 2.0
"""A row's time and its tokens per second may be of different steps, and differ by this factor."""

USUAL = {False: 0.08, True: 0.15}
"""How far off the physics is expected to be in each way, without and with experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Runs whose steps were timed.

    Attributes:
        rows: their configurations. `seconds`, `weights`: of a step, and how much each counts; (n,).
    """

    rows: TrainingRows
    seconds: NDArray[np.float64]
    weights: NDArray[np.float64]


def seconds_of(row: Row) -> float:
    """Give the seconds of a step that a row states, or that follow from its tokens per second.

    Returns:
        NaN where it states neither.
    """

    def number(name: str) -> float:
        try:
            return float(row.get(name) or "nan")
        except ValueError:
            return float("nan")

    stated = number("step_time_s")
    if stated > 0:
        return stated
    rate = number("tokens_per_s_per_gpu") * number("num_gpus")
    tokens = number("global_batch") * number("seq_len")
    return tokens / rate if rate > 0 else float("nan")


def misstated(row: Row) -> str:
    """Say what of a row's time cannot have been measured; "" where it may, or states none."""
    stated = {name: text_of(row, name) for name in ("step_time_s", "tokens_per_s_per_gpu")}
    for name, text in stated.items():
        try:
            number = float(text or "1")
        except ValueError:
            number = math.nan
        if not (number > 0 and math.isfinite(number)):
            return f"{name} must be a number above 0, not {text[:SHOWN]!r}"
    apart = (
        seconds_of(row) / seconds_of({**row, "step_time_s": ""}) if all(stated.values()) else 1.0
    )
    if not 1 / MOST_APART <= apart <= MOST_APART and math.isfinite(apart):
        return (
            "step_time_s and tokens_per_s_per_gpu contradict each other by a factor of "
            f"{apart:.2g}: the first is in seconds, the second of one GPU"
        )
    return ""


def measured_rows(rows: Sequence[Row], weights: NDArray[np.float64]) -> Measured:
    """Keep the rows that state a time and can be predicted."""
    seconds = np.array([seconds_of(row) for row in rows])
    timed = np.flatnonzero(np.isfinite(seconds) & (seconds > 0))
    read = read_rows([rows[int(index)] for index in timed])
    kept = timed[read.kept]
    return Measured(rows=read, seconds=seconds[kept], weights=weights[kept])


def part(measured: Measured, which: NDArray[np.int64]) -> Measured:
    """Choose some of the runs."""
    rows = measured.rows
    chosen = TrainingRows(
        setups=take(rows.setups, which),
        tags=tuple(rows.tags[index] for index in which),
        kept=rows.kept[which],
        excluded={},
    )
    return Measured(rows=chosen, seconds=measured.seconds[which], weights=measured.weights[which])


def shared_weights(measured: Measured) -> NDArray[np.float64]:
    """Give weights by which a fit hears each model on each GPU once, however many runs it has.

    Runs of one cluster err alike: a hundred of them say little more about the physics than ten.
    """
    clusters = [(tags.model, tags.gpu) for tags in measured.rows.tags]
    counted = Counter(clusters)
    return measured.weights / np.array([counted[each] for each in clusters], dtype=np.float64)


def learn_habits(measured: Measured, parameters: Parameters) -> dict[bool, Habits]:
    """Learn how alike runs err, without and with experts; takes a minute for 500 of them.

    The errors are those of physics that were fitted without the run's model on its GPU: a fit that
    saw them has bent towards them, and would say that runs err less, and less alike, than they do.
    """
    errors, tags = _errors_unseen(measured, parameters), _tags(measured, parameters)
    return {
        kind: learn([tags[index] for index in which], errors[which], usual=USUAL[kind])
        for kind in (False, True)
        for which in (_of_kind(measured, kind, thinned=False),)
    }


def _errors_unseen(measured: Measured, parameters: Parameters) -> NDArray[np.float64]:
    """Give log(measured / predicted) of runs by physics fitted without their model and GPU."""
    clusters = [(tags.model, tags.gpu) for tags in measured.rows.tags]
    numbers = {each: number for number, each in enumerate(sorted(set(clusters)))}
    dealt = np.array([numbers[each] % FOLDS for each in clusters], dtype=np.int64)
    errors = np.zeros(len(clusters))
    for fold in range(FOLDS):
        held, others = np.flatnonzero(dealt == fold), np.flatnonzero(dealt != fold)
        if not len(held):
            continue
        seen, unseen = part(measured, others), part(measured, held)
        fitted = fit(seen.rows.setups, seen.seconds, weights=shared_weights(seen), start=parameters)
        errors[held] = physics_errors(unseen.rows.setups, unseen.seconds, fitted)
    return errors


def fit_model(
    measured: Measured,
    *,
    shares: PowerShares,
    habits: dict[bool, Habits] | None = None,
    start: Parameters | None = None,
) -> CostModel:
    """Fit the physics, and take in what is left over.

    Args:
        measured: the runs.
        shares: watts by phase.
        habits: how alike runs err; learned anew without them.
        start: where the fit begins.
    """
    parameters = fit(
        measured.rows.setups, measured.seconds, weights=shared_weights(measured), start=start
    )
    known = habits or learn_habits(measured, parameters)
    errors = physics_errors(measured.rows.setups, measured.seconds, parameters)
    tags = _tags(measured, parameters)
    known_errors: dict[bool, KnownErrors] = {}
    for kind in (False, True):
        which = _of_kind(measured, kind, thinned=True)
        known_errors[kind] = observe([tags[index] for index in which], errors[which], known[kind])
    return CostModel(parameters=parameters, shares=shares, known_errors=known_errors)


def with_measurements(model: CostModel, measured: Measured) -> CostModel:
    """Take further runs in: predictions of like ones move towards them, and are surer.

    The physics and how alike runs err stay as they were fitted. Of the runs of others one that is
    far off its neighbours may be a mistake in a table; these are believed more than that.
    """
    errors = physics_errors(measured.rows.setups, measured.seconds, model.parameters)
    own = _tags(measured, model.parameters)
    known_errors = dict(model.known_errors)
    for kind, known in model.known_errors.items():
        which = [place for place, tags in enumerate(own) if bool(tags.has_experts) == kind]
        if not which:
            continue
        tags = (*known.tags, *(own[place] for place in which))
        known_errors[kind] = observe(
            tags,
            np.concatenate([known.errors, errors[which]]),
            known.habits,
            trusted=len(which),
        )
    return replace(model, known_errors=known_errors)


def _tags(measured: Measured, parameters: Parameters) -> tuple[Tags, ...]:
    """Give runs' tags with the phases of their predicted steps."""
    return with_phases(measured.rows.tags, step_time(measured.rows.setups, parameters))


def _of_kind(measured: Measured, has_experts: bool, *, thinned: bool) -> NDArray[np.int64]:
    experts = np.array([bool(tags.has_experts) for tags in measured.rows.tags], dtype=bool)
    full = np.flatnonzero((experts == has_experts) & (measured.weights >= 1))
    rest = np.flatnonzero((experts == has_experts) & (measured.weights < 1))
    return np.concatenate([full, rest[::EVERY]]) if thinned else full
