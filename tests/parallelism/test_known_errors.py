"""What measured runs teach of others: a Gaussian process, beside one written out by hand."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.parallelism.rows import read, row
from wattmesh.controller.cost_model import fitted
from wattmesh.policies.parallelism.energy import PowerShares
from wattmesh.policies.parallelism.hardware import CLASSES
from wattmesh.policies.parallelism.measured import fit_model, measured_rows
from wattmesh.policies.parallelism.predict import predict
from wattmesh.policies.parallelism.residuals.error_covariance import (
    AMPLITUDES,
    SIZE,
    Habits,
    compare,
    covariance,
    covariance_and_slopes,
)
from wattmesh.policies.parallelism.residuals.known_errors import (
    FREEDOM,
    KnownErrors,
    learn,
    observe,
)
from wattmesh.policies.parallelism.training_rows import Tags

Array = NDArray[np.float64]

NAMES = (0.05, 0.06, 0.07, 0.08, 0.09, 0.10, 0.11, 0.12, 0.13)
BY_PHASE = tuple(0.02 + 0.01 * each for each in range(12))
LENGTH = (1.4, 1.1, 0.9, 1.3, 1.2, 1.5, 0.8, 1.0, 1.6, 1.7)
HABITS = Habits(logarithms=np.log(np.array([*NAMES, *BY_PHASE, *LENGTH, 0.5, 0.04])))
PHASES_OF = ((0.7, 0.1, 0.1, 0.1), (0.4, 0.2, 0.3, 0.1), (0.25, 0.25, 0.25, 0.25))
OURS = {"framework": "Megatron-Bridge / NeMo 26.02", "model": "llama3-8b", "gpu": "h100"}
THEIRS = {"framework": "torchtitan", "gpu": "a100", "hidden": "12288", "heads": "96"}
THEIRS |= {"kv_heads": "96", "ffn": "49152", "gated_mlp": "0"}


def tags(**changes: object) -> Tags:
    """Give one run's tags."""
    return read(row(**changes)).tags[0]


def few() -> list[Tags]:
    """Give seven runs that differ in every way that counts."""
    found = [
        tags(**OURS),
        tags(**OURS, tp=4),
        tags(**OURS | {"framework": "Megatron-Bridge / NeMo 25.09"}),
        tags(**OURS, precision="fp8"),
        tags(**THEIRS, tp=8),
        tags(**OURS | {"model": "mixtral"}, experts=8, topk=2, moe_ffn=4096, ep=8),
        tags(**THEIRS | {"gpu": "h100"}, micro_batch=2),
    ]
    return [replace(each, phases=PHASES_OF[at % 3]) for at, each in enumerate(found)]


ERRORS = np.array([0.10, 0.12, -0.05, 0.2, 0.30, 0.02, -0.2])


def alike(one: Tags, other: Tags, habits: Habits) -> float:
    """Give the covariance of two runs' errors, written out."""
    size = [math.exp(each) for each in habits.logarithms]
    lengths = size[AMPLITUDES:-2]
    per_place = [length for way, length in zip(WAYS, lengths, strict=True) for _ in range(way)]
    apart = [(a - b) / c for a, b, c in zip(one.place, other.place, per_place, strict=True)]
    near = math.exp(-math.hypot(*apart))
    recent = math.exp(-abs(one.release_years - other.release_years) / size[-2])
    model, gpu = one.model == other.model, one.gpu == other.gpu
    software = one.software == other.software
    number_format = one.number_format == other.number_format
    kind = one.has_experts == other.has_experts
    terms = (
        float(software and kind and gpu),
        float(software and gpu and number_format and kind),
        float(model),
        float(model and gpu),
        near,
        near * (model and gpu),
        near * recent * (model and software and gpu and number_format),
        recent * (software and kind and number_format),
        recent * (software and kind and number_format and model),
    )
    built = CLASSES[one.gpu].generation == CLASSES[other.gpu].generation
    whats = (gpu and software, model, recent * (software and built and number_format))
    phases = [a * b for a, b in zip(one.phases, other.phases, strict=True)]
    every = [*terms, *(what * share for what in whats for share in phases)]
    return sum(each**2 * term for each, term in zip(size[:AMPLITUDES], every, strict=True))


WAYS = (1, 1, 2, 1, 1, 1, 1, 1, 2, 2)
"""Entries of a place that share one length, in order."""


def dense(known: list[Tags], errors: Array, asked: list[Tags], habits: Habits) -> list[Array]:
    """Compute mean and deviation by inverting the whole matrix, outliers weighed by Student's t."""
    noise = habits.noise**2
    matrix = np.array([[alike(a, b, habits) for b in known] for a in known])
    variance = np.full(len(known), noise)
    for _ in range(8):
        smooth = matrix @ np.linalg.inv(matrix + np.diag(variance)) @ errors
        variance = noise * (FREEDOM + (errors - smooth) ** 2 / noise) / (FREEDOM + 1)
    inverse = np.linalg.inv(matrix + np.diag(variance))
    across = np.array([[alike(a, b, habits) for b in known] for a in asked])
    own = np.array([alike(a, a, habits) + noise for a in asked])
    left = own - np.einsum("ij,jk,ik->i", across, inverse, across)
    return [across @ inverse @ errors, np.sqrt(np.maximum(left, noise))]


def test_corrections_are_those_of_a_gaussian_process_written_out() -> None:
    """Mean and deviation, of runs that were measured and of others."""
    asked = [*few(), tags(), tags(**THEIRS), tags(gpu="gb200", model="other", framework="own")]
    found = observe(few(), ERRORS, HABITS).correct(asked)
    mean, deviation = dense(few(), ERRORS, asked, HABITS)
    np.testing.assert_allclose(found.log_ratio, mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.deviation, deviation, rtol=1e-9)


def test_another_covariance_is_caught() -> None:
    """Sabotaged twin: a process in which releases never fade is not the one written out."""
    never = Habits(logarithms=np.where(np.arange(SIZE) == SIZE - 2, 20.0, HABITS.logarithms))
    mean, _ = dense(few(), ERRORS, few(), HABITS)
    assert np.abs(observe(few(), ERRORS, never).correct(few()).log_ratio - mean).max() > 1e-4


def test_slopes_are_those_of_small_steps() -> None:
    """Of each logarithm, beside the difference of two covariances."""
    pairs = compare(few(), few())
    _, slopes = covariance_and_slopes(pairs, HABITS.logarithms)
    assert len(slopes) == SIZE - 1
    for at in range(SIZE - 1):
        step = np.where(np.arange(SIZE) == at, 1e-5, 0.0)
        above, below = (covariance(pairs, HABITS.logarithms + each) for each in (step, -step))
        np.testing.assert_allclose(slopes[at], (above - below) / 2e-5, atol=1e-9)


def test_one_measured_run_improves_its_neighbours_and_leaves_others_alone() -> None:
    """A run 20 % slower than predicted, by the habits that are shipped."""
    habits = fitted.shipped().known_errors[False].habits
    slower = math.log(1.2)
    known = observe([tags(**OURS)], np.array([slower]), habits)
    nothing = observe([], np.array([]), habits)
    asked = [tags(**OURS, tp=4), tags(**OURS, pp=1), tags(**THEIRS, tp=8, pp=8, num_gpus=512)]
    before, after = nothing.correct(asked), known.correct(asked)
    assert before.log_ratio.tolist() == [0.0, 0.0, 0.0]
    for at in (0, 1):
        moved = float(after.log_ratio[at]) / slower
        narrower = 1 - float(after.deviation[at] / before.deviation[at])
        said = f"moved by {moved:.0%} of what was measured, {narrower:.0%} narrower"
        assert 0.6 < moved < 1, said
        assert narrower > 0.3, said
    far = float(after.log_ratio[2]) / slower
    narrower = 1 - float(after.deviation[2] / before.deviation[2])
    assert abs(far) < 0.2, f"another model on another cluster moved by {far:.1%}"
    assert 0 <= narrower < 0.05, f"another cluster's interval is {narrower:.1%} narrower"


def test_a_measurement_never_widens_an_interval() -> None:
    """One run after another, each asked for each."""
    widths = []
    for count in range(len(few()) + 1):
        known = KnownErrors(
            tags=tuple(few()[:count]),
            errors=ERRORS[:count],
            habits=HABITS,
            noise2=np.full(count, HABITS.noise**2),
        )
        widths.append(known.correct(few()).deviation)
    for before, after in pairwise(widths):
        assert (after <= before * (1 + 1e-9)).all()


def test_a_measurement_far_from_its_neighbours_counts_less() -> None:
    """Five runs agree; a sixth beside them is off by two e-folds."""
    near = [tags(**OURS, micro_batch=each) for each in (1, 1, 2, 2, 2)]
    broken = [*near, tags(**OURS, micro_batch=2)]
    errors = np.array([0.10, 0.11, 0.10, 0.09, 0.10, 2.0])
    found = observe(broken, errors, HABITS)
    assert found.noise2[-1] > 20 * found.noise2[:-1].max()
    gullible = replace(found, noise2=np.full(6, HABITS.noise**2))
    asked = [tags(**OURS, micro_batch=1)]
    robust = float(found.correct(asked).log_ratio[0])
    assert robust == pytest.approx(0.1, abs=0.03)
    believed = float(gullible.correct(asked).log_ratio[0])
    assert abs(believed - 0.1) > 3 * abs(robust - 0.1)


def test_nothing_known_and_nothing_asked() -> None:
    """Empty lists: no correction with the widest interval, and none at all."""
    nothing = observe([], np.array([]), HABITS)
    found = nothing.correct(few())
    assert found.log_ratio.tolist() == [0.0] * 7
    common = sum(each**2 for each in NAMES) + 0.04**2
    for asked, deviation in zip(few(), found.deviation, strict=True):
        by_phase = zip(BY_PHASE, asked.phases * 3, strict=True)
        widest = math.sqrt(common + sum((size * share) ** 2 for size, share in by_phase))
        assert deviation == pytest.approx(widest)
    for known in (nothing, observe(few(), ERRORS, HABITS)):
        empty = known.correct([])
        assert empty.log_ratio.shape == empty.deviation.shape == (0,)


def test_habits_are_learned_from_errors_that_go_by_model() -> None:
    """Runs of one model err alike, those of another otherwise: that way is found to be largest."""
    draw = np.random.default_rng(5)
    own = {"framework": "x", "gpu": "h100"}
    runs, errors = [], []
    for number in range(8):
        common = draw.normal(0, 0.3)
        for tp in (1, 2, 4):
            runs.append(tags(**own, vocab=50000 + number, tp=tp))
            errors.append(common + draw.normal(0, 0.02))
    found = np.exp(learn(runs, np.array(errors), usual=0.08).logarithms)
    by_model = math.hypot(*(found[[2, 3, 8]]))
    assert by_model > 1.15 * math.hypot(*(found[[0, 1, 4, 7]]))
    assert found[-1] < 0.06


def test_habits_of_no_runs_are_what_is_expected() -> None:
    """So a model can be fitted to runs that are all dense."""
    found = learn([], np.array([]), usual=0.15)
    np.testing.assert_allclose(np.exp(found.logarithms[:AMPLITUDES]), 0.15)
    measured = measured_rows([row(step_time_s=each) for each in ("5", "5.2")], np.ones(2))
    model = fit_model(measured, shares=PowerShares())
    assert model.known_errors[True].tags == ()
    assert len(model.known_errors[False].tags) == 2
    assert np.isfinite(predict(read(row(experts=8, topk=2, moe_ffn=512)), model).step_s).all()


def test_one_kind_of_model_teaches_nothing_of_the_other() -> None:
    """Known errors of dense models leave models with experts alone, and the reverse."""
    model = fitted.shipped()
    dense_row = row()
    experts_row = row(experts=8, topk=2, moe_ffn=4096, model="mixtral-8x22b")
    found = predict(read(dense_row, experts_row), model)
    empty = observe([], np.array([]), model.known_errors[True].habits)
    without = predict(
        read(dense_row, experts_row),
        replace(model, known_errors={False: model.known_errors[False], True: empty}),
    )
    assert found.corrected[0] == without.corrected[0]
    assert without.corrected[1] == 1.0 != found.corrected[1]
