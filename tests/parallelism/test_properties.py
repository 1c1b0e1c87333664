"""What holds for every legal configuration, whatever was fitted."""

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parallelism.rows import RIGHT, Drawn, Row, legal, read, row, setups
from wattmesh.controller.cost_model import fitted
from wattmesh.policies.parallelism.energy import PowerShares, StepEnergy, step_energy
from wattmesh.policies.parallelism.memory import PeakMemory, memory
from wattmesh.policies.parallelism.parameters import (
    SIZE,
    Parameters,
    pack,
    prior_logarithms,
    prior_spreads,
    unpack,
)
from wattmesh.policies.parallelism.predict import CostModel, Predictions, predict
from wattmesh.policies.parallelism.residuals.known_errors import observe
from wattmesh.policies.parallelism.setups import Setups
from wattmesh.policies.parallelism.step_time import StepTime, step_time

MANY = 120
"""Examples, of some rows each: enough that each value of each column is drawn."""

LISTS = st.lists(legal(), min_size=1, max_size=4)


@st.composite
def any_parameters(draw: st.DrawFn) -> Parameters:
    """Draw parameters up to two spreads from their priors."""
    seed = draw(st.integers(0, 2**32 - 1))
    off = np.random.default_rng(seed).uniform(-2, 2, SIZE)
    return unpack(prior_logarithms() + off * prior_spreads())


def columns(found: StepTime | PeakMemory | StepEnergy | Predictions) -> dict[str, np.ndarray]:
    """Give the arrays of a result by name."""
    return {field.name: np.asarray(getattr(found, field.name)) for field in fields(found)}


def everything(found: Setups, parameters: Parameters, clock: float = 1.0) -> dict[str, np.ndarray]:
    """Compute all there is."""
    time = step_time(found, parameters)
    energy = step_energy(found, time, PowerShares(), clock=clock)
    return columns(time) | columns(memory(found)) | columns(energy)


def not_positive(found: dict[str, np.ndarray]) -> list[str]:
    """List results that are no finite number, or below what they may be."""
    may_be_zero = {"exposed_s", "waiting_s"}
    return [
        name
        for name, values in found.items()
        if not np.isfinite(values).all()
        or (values < 0).any()
        or (name not in may_be_zero and (values == 0).any())
    ]


def test_every_result_is_finite_and_positive() -> None:
    """Whatever is drawn; phases add up to no more than the step, memory's parts to all of it."""
    drawn = Drawn()

    @settings(max_examples=MANY)
    @given(LISTS, any_parameters())
    def every(rows: list[Row], parameters: Parameters) -> None:
        drawn.add(*rows)
        found = everything(setups(*rows), parameters)
        assert not_positive(found) == []
        phases = found["products_s"] + found["memory_s"] + found["exposed_s"] + found["waiting_s"]
        assert (phases >= found["total_s"] * (1 - 1e-9)).all()
        held = found["state"] + found["activations"] + found["transient"]
        np.testing.assert_allclose(held, found["total"], rtol=1e-12)

    every()
    assert drawn.missing() == []


HUGE = {
    "layers": 10**9,
    "hidden": 10**9,
    "heads": 10**9,
    "kv_heads": 10**9,
    "ffn": 10**9,
    "vocab": 10**9,
    "experts": 10**9,
    "topk": 10**9,
    "moe_ffn": 10**9,
    "seq_len": 10**9,
    "num_gpus": 10**9,
    "global_batch": 10**9,
}


@pytest.mark.parametrize("zero", ["0", "1", "2", "3"])
def test_the_largest_and_smallest_believed_sizes_are_finite(zero: str) -> None:
    """At the bounds that a row may have, together and one by one."""
    smallest = {name: 1 for name in HUGE} | {"topk": 1, "micro_batch": 1}
    base = {"zero": zero, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "model": ""}
    rows = [row(**base | smallest)]
    rows += [
        row(**base | HUGE | {"global_batch": 10**9, "micro_batch": 1}),
        row(**base | HUGE | {"num_gpus": 1, "micro_batch": 10**9}),
        row(**base | smallest | {"layers": 10**9, "pp": 10**9, "num_gpus": 10**9}),
        row(**base | smallest | {"heads": 10**9, "tp": 10**9, "num_gpus": 10**9}),
        row(**base | smallest | {"cp": 10**9, "num_gpus": 10**9}),
    ]
    assert not_positive(everything(setups(*rows), unpack(prior_logarithms()))) == []
    predictions = columns(predict(read(*rows), fitted.shipped()))
    assert not_positive(predictions) == []


def changed(rows: list[Row], **changes: Any) -> Setups:
    """Read rows, changed."""
    return setups(*(each | {name: str(value) for name, value in changes.items()} for each in rows))


def test_more_microbatches_take_longer_and_no_more_memory_than_the_pipeline_holds() -> None:
    """Twice the global batch on the same ranks: longer, by less than twice."""
    drawn = Drawn()

    @settings(max_examples=MANY)
    @given(LISTS, any_parameters())
    def every(rows: list[Row], parameters: Parameters) -> None:
        drawn.add(*rows)
        twice = [each | {"global_batch": str(2 * int(each["global_batch"]))} for each in rows]
        one = np.asarray(step_time(setups(*rows), parameters).total_s)
        two = np.asarray(step_time(setups(*twice), parameters).total_s)
        assert (two > one).all()
        assert (two <= 2 * one * (1 + 1e-9)).all()
        before, after = memory(setups(*rows)), memory(setups(*twice))
        assert (np.asarray(after.total) >= np.asarray(before.total) * (1 - 1e-12)).all()

    every()
    assert drawn.missing() == []


def equal_stages(rows: list[Row]) -> list[Row]:
    """Take away names by which first layers have no experts.

    Their stages hold different states, and which of them is the fullest may change.
    """
    return [each | {"model": each["model"].replace("deepseek-v3", "")} for each in rows]


def falls(values: list[np.ndarray]) -> bool:
    """Tell whether no array is above the one before it."""
    return all((after <= before * (1 + 1e-12)).all() for before, after in pairwise(values))


def test_state_never_grows_with_the_zero_stage() -> None:
    """0 to 3, where all stages hold as much; the whole peak of any model 0 to 2.

    Stage 3 stands for FSDP as plain PyTorch has it too: it gathers layers, and its loss is not
    fused, so that its peak may be higher where there are few ranks to deal to.
    """
    drawn = Drawn()

    @settings(max_examples=MANY)
    @given(LISTS)
    def every(rows: list[Row]) -> None:
        drawn.add(*rows)
        found = [memory(changed(rows, zero=zero)) for zero in range(3)]
        assert falls([np.asarray(each.total) for each in found])
        alike = [memory(changed(equal_stages(rows), zero=zero)) for zero in range(4)]
        assert falls([np.asarray(each.state) for each in alike])

    every()
    assert not [each for each in drawn.missing() if each[0] != "zero"]


def test_more_tensor_parallelism_never_needs_more_state() -> None:
    """With as many data-parallel ranks (the whole peak neither), and with as many GPUs."""
    drawn = Drawn()

    @settings(max_examples=MANY)
    @given(st.lists(legal(tp=1, heads=64, kv_heads=8, ep=1), min_size=1, max_size=3))
    def every(drawn_rows: list[Row]) -> None:
        drawn.add(*drawn_rows)
        rows = equal_stages(drawn_rows)
        wider = [
            [each | {"tp": str(tp), "num_gpus": str(tp * int(each["num_gpus"]))} for each in rows]
            for tp in (1, 2, 4, 8)
        ]
        assert falls([np.asarray(memory(setups(*each)).state) for each in wider])
        assert falls([np.asarray(memory(setups(*each)).total) for each in wider])
        wide = [
            [
                each
                | {"tp": str(tp), "num_gpus": str(8 * int(each["num_gpus"]))}
                | {"global_batch": str(8 * int(each["global_batch"]))}
                for each in rows
            ]
            for tp in (1, 2, 4, 8)
        ]
        assert falls([np.asarray(memory(setups(*each)).state) for each in wide])

    every()
    assert not [each for each in drawn.missing() if each[0] in ("zero", "pp", "cp", "experts")]


def test_a_lower_clock_takes_longer_and_draws_less() -> None:
    """Watts stay between idle and what a GPU may draw."""
    drawn = Drawn()

    @settings(max_examples=MANY)
    @given(LISTS, any_parameters(), st.floats(0.2, 1.0), st.floats(0.3, 0.99))
    def every(rows: list[Row], parameters: Parameters, clock: float, of: float) -> None:
        drawn.add(*rows)
        found = setups(*rows)
        fast, slow = everything(found, parameters, clock), everything(found, parameters, clock * of)
        assert (slow["step_s"] > fast["step_s"]).all()
        assert (slow["gpu_w"] < fast["gpu_w"]).all()
        for each in (fast, slow):
            assert (each["gpu_w"] >= found.hardware.idle_w).all()
            assert (each["gpu_w"] <= np.asarray(found.hardware.power_w) * (1 + 1e-12)).all()

    every()
    assert drawn.missing() == []


def misplaced(found: Predictions) -> bool:
    """Tell whether a prediction lies outside of its own interval."""
    return bool(((found.low_s > found.step_s) | (found.step_s > found.high_s)).any())


def thinned() -> CostModel:
    """Give the shipped model with few of its measured runs, so that it is fast."""
    model = fitted.shipped()
    few = {
        kind: observe(known.tags[::8], known.errors[::8], known.habits)
        for kind, known in model.known_errors.items()
    }
    return replace(model, known_errors=few)


def test_an_interval_holds_its_prediction() -> None:
    """By what is shipped, with experts and without."""
    drawn, model = Drawn(), thinned()

    @settings(max_examples=MANY)
    @given(LISTS)
    def every(rows: list[Row]) -> None:
        drawn.add(*rows)
        found = predict(read(*rows), model)
        assert not_positive(columns(found)) == []
        assert not misplaced(found)

    every()
    assert drawn.missing() == []


def test_order_does_not_matter() -> None:
    """Rows in another order give the same results in that order."""
    drawn, model = Drawn(), thinned()

    @settings(max_examples=MANY)
    @given(st.lists(legal(), min_size=2, max_size=6).flatmap(with_order))
    def every(both: tuple[list[Row], list[int]]) -> None:
        rows, order = both
        drawn.add(*rows)
        one = columns(predict(read(*rows), model))
        other = columns(predict(read(*(rows[index] for index in order)), model))
        for name, values in one.items():
            np.testing.assert_allclose(values[order], other[name], rtol=1e-9, err_msg=name)

    every()
    assert drawn.missing() == []


def with_order(rows: list[Row]) -> st.SearchStrategy[tuple[list[Row], list[int]]]:
    """Draw an order of rows."""
    return st.tuples(st.just(rows), st.permutations(range(len(rows))))


def numbers(columns_of: Any) -> Any:
    """Turn columns of one entry into plain numbers; indices stay arrays."""
    plain = {
        field.name: float(np.asarray(getattr(columns_of, field.name))[0])
        for field in fields(columns_of)
        if field.name not in ("family", "generation")
    }
    return replace(columns_of, **plain)


def test_plain_numbers_count_as_columns_do() -> None:
    """One configuration in numbers, in columns of one, and among others: the same."""
    drawn = Drawn()

    @settings(max_examples=MANY)
    @given(legal(), st.lists(legal(), max_size=2), any_parameters())
    def every(one: Row, others: list[Row], parameters: Parameters) -> None:
        drawn.add(one, *others)
        alone = setups(one)
        among = everything(setups(*others, one), parameters)
        scalar = Setups(
            shape=numbers(alone.shape),
            hardware=numbers(alone.hardware),
            layout=numbers(alone.layout),
            work=numbers(alone.work),
        )
        by_number = everything(scalar, parameters)
        for name, values in everything(alone, parameters).items():
            found = np.atleast_1d(by_number[name])
            np.testing.assert_allclose(found, values, rtol=1e-12, err_msg=name)
            np.testing.assert_allclose(np.atleast_1d(among[name])[-1:], values, rtol=1e-12)

    every()
    assert drawn.missing() == []


@given(any_parameters())
def test_parameters_survive_packing(parameters: Parameters) -> None:
    """There and back, by name and by place."""
    again = unpack(pack(parameters))
    for field in fields(parameters):
        np.testing.assert_allclose(
            getattr(again, field.name), getattr(parameters, field.name), rtol=1e-12
        )
    np.testing.assert_allclose(pack(again), pack(parameters), rtol=0, atol=1e-12)


# Sabotaged twins.


def shipped_prediction() -> Predictions:
    """Predict the right row."""
    return predict(read(RIGHT), fitted.shipped())


def test_an_inverted_interval_is_caught() -> None:
    """A cost model whose low end is its high one."""
    found = shipped_prediction()
    assert not misplaced(found)
    assert misplaced(replace(found, low_s=found.high_s, high_s=found.low_s))


def test_a_result_that_is_no_number_is_caught() -> None:
    """NaN, infinity, zero and below."""
    found = columns(shipped_prediction())
    assert not_positive(found) == []
    for wrong in (np.nan, np.inf, 0.0, -1.0):
        assert not_positive(found | {"step_s": np.array([wrong])}) == ["step_s"]


def test_state_that_grows_is_caught() -> None:
    """One part in a million is enough."""
    assert falls([np.array([3.0]), np.array([3.0]), np.array([1.0])])
    assert not falls([np.array([3.0]), np.array([3.000003])])


def test_what_was_never_drawn_is_named() -> None:
    """A property test that saw one row only says what it did not cover."""
    drawn = Drawn()
    drawn.add(RIGHT)
    assert ("zero", "3") in drawn.missing()
    assert ("zero", "1") not in drawn.missing()


def test_the_shipped_model_is_one() -> None:
    """Read from the package, finite, with measured runs of both kinds."""
    model: CostModel = fitted.shipped()
    assert np.isfinite(pack(model.parameters)).all()
    assert all(len(known.tags) > 100 for known in model.known_errors.values())
