"""V1, V2 and V7 see every bit and every digit that they claim to see."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.reconfig.equivalence.whole import (
    WholeState,
    close_curves,
    close_gradients,
    close_states,
    differing,
    round_trip,
    tied,
    without_padding,
)

Spoil = Callable[[dict[str, np.ndarray]], None]


def state() -> WholeState:
    """A small state: weights, a moment, a fused stack of experts, a counter and settings."""
    draw = np.random.default_rng(7)
    arrays: dict[str, Any] = {
        "param.embed": draw.standard_normal((10, 4)),
        "param.head": draw.standard_normal((10, 4)),
        "param.qkv": draw.standard_normal((12, 4)),
        "param.experts": draw.standard_normal((4, 3, 4)),
        "slot.embed.exp_avg": draw.standard_normal((10, 4)),
        "slot.embed.step": np.float32(7).reshape(()),
    }
    arrays["param.head"] = arrays["param.embed"].copy()
    dtypes = {key: str(each.dtype) for key, each in arrays.items()}
    return WholeState(arrays=arrays, dtypes=dtypes, plain={"lr": 0.1, "betas": (0.9, 0.95)})


def _drop_moment(arrays: dict[str, np.ndarray]) -> None:
    del arrays["slot.embed.exp_avg"]


def _zero_moment(arrays: dict[str, np.ndarray]) -> None:
    arrays["slot.embed.exp_avg"] = np.zeros((10, 4))


def _count_on(arrays: dict[str, np.ndarray]) -> None:
    arrays["slot.embed.step"] = arrays["slot.embed.step"] + np.float32(1)


def _swap_experts(arrays: dict[str, np.ndarray]) -> None:
    arrays["param.experts"] = arrays["param.experts"][[1, 0, 2, 3]]


def _permute_qkv(arrays: dict[str, np.ndarray]) -> None:
    arrays["param.qkv"] = arrays["param.qkv"].reshape(3, 2, 2, 4).swapaxes(0, 1).reshape(12, 4)


def _flip_a_bit(arrays: dict[str, np.ndarray]) -> None:
    arrays["param.embed"].view(np.uint8)[3, 5] ^= 1


def _flip_a_sign_of_zero(arrays: dict[str, np.ndarray]) -> None:
    arrays["param.embed"][0, 0] = 0.0


SPOIL: dict[str, Spoil] = {
    "a moment is dropped": _drop_moment,
    "a moment is zeroed": _zero_moment,
    "the step is off by one": _count_on,
    "two experts are swapped": _swap_experts,
    "QKV is permuted": _permute_qkv,
    "one bit is flipped": _flip_a_bit,
}


def spoilt(spoil: Spoil) -> WholeState:
    """The state after something went wrong."""
    whole = state()
    arrays = {key: each.copy() for key, each in whole.arrays.items()}
    spoil(arrays)
    return replace(whole, arrays=arrays)


def test_the_same_state_is_the_same() -> None:
    """Two gathers of one state differ in nothing."""
    assert round_trip(state(), state()).ok
    assert close_states(state(), state()).ok


@pytest.mark.parametrize("what", SPOIL)
def test_a_spoilt_state_is_seen(what: str) -> None:
    """The sabotaged twins: each is found, by name, and nothing else is."""
    found = round_trip(state(), spoilt(SPOIL[what]))
    assert not found.ok
    assert found.measured == 1
    assert "the first: " in found.sentence


@pytest.mark.parametrize("what", [each for each in SPOIL if "bit" not in each])
def test_a_spoilt_state_is_not_close(what: str) -> None:
    """What is more than rounding is seen by size as well."""
    assert not close_states(spoilt(SPOIL[what]), state()).ok


def test_minus_zero_is_another_state_bitwise_and_the_same_by_size() -> None:
    """V1 compares bits: 0 and -0 differ, although they are equal."""
    plus, minus = np.zeros(3), np.array([0.0, -0.0, 0.0])
    assert differing(WholeState(arrays={"x": plus}), WholeState(arrays={"x": minus})) == ["x"]
    assert close_states(WholeState(arrays={"x": plus}), WholeState(arrays={"x": minus})).ok


def test_other_settings_and_other_dtypes_are_seen() -> None:
    """A learning rate, a silent cast, and replicas that disagree are differences."""
    whole = state()
    cast = {**whole.dtypes, "param.qkv": "bfloat16"}
    assert differing(whole, replace(whole, plain={**whole.plain, "lr": 0.2})) == ["lr"]
    assert differing(whole, replace(whole, dtypes=cast)) == ["param.qkv"]
    assert differing(whole, replace(whole, disputed=("param.head",))) == ["param.head"]
    assert not close_states(replace(whole, disputed=("param.head",)), whole).ok


def test_nothing_gathered_proves_nothing() -> None:
    """An empty comparison is no proof."""
    assert not round_trip(WholeState(arrays={}), WholeState(arrays={})).ok
    assert not close_states(WholeState(arrays={}), WholeState(arrays={})).ok
    assert not close_curves({}, {}).ok
    assert not close_gradients({}, {}, dtype="float64").ok


def test_a_broken_tie_is_seen() -> None:
    """An alias equals its partner; one that has gone its own way, or is gone, does not."""
    assert tied(state(), {"param.head": "param.embed"}).ok
    assert not tied(spoilt(_flip_a_bit), {"param.head": "param.embed"}).ok
    assert not tied(state(), {"param.gone": "param.embed"}).ok


def test_padding_is_cut_off_and_must_be_empty() -> None:
    """Rows that only one layout has are no part of the state, as long as nothing trains there."""
    whole = state()
    padded = {
        key: np.concatenate([each, np.zeros((2, 4))]) if "embed" in key and each.ndim else each
        for key, each in whole.arrays.items()
    }
    rows = {"param.embed": 10, "slot.embed.exp_avg": 10}
    cut, clean = without_padding(replace(whole, arrays=padded), rows)
    assert clean.ok
    assert round_trip(whole, cut).ok
    padded["slot.embed.exp_avg"][11, 2] = 1e-30
    _, dirty = without_padding(replace(whole, arrays=padded), rows)
    assert not dirty.ok
    assert "slot.embed.exp_avg" in dirty.sentence


@given(st.floats(min_value=1e-15, max_value=1e-2))
def test_the_size_of_a_difference_is_found(size: float) -> None:
    """V2 measures what was put there, whatever else is in the state."""
    whole = state()
    largest = np.abs(whole.arrays["param.qkv"]).max()
    moved = whole.arrays["param.qkv"].copy()
    moved[1, 1] += size * largest
    found = close_states(replace(whole, arrays={**whole.arrays, "param.qkv": moved}), whole)
    assert found.measured == pytest.approx(size, rel=0.5)
    assert found.ok == (found.measured <= 1e-12)


def test_curves_are_compared_step_by_step() -> None:
    """A missing step, a nan, and a late difference are all seen."""
    curve = {step: 5.0 / step for step in range(1, 9)}
    assert close_curves(curve, dict(curve)).ok
    assert close_curves({**curve, 8: curve[8] * (1 + 1e-14)}, curve).ok
    for wrong in ({**curve, 8: curve[8] * (1 + 1e-9)}, {**curve, 3: float("nan")}, {1: 5.0}):
        assert not close_curves(wrong, curve).ok


def test_one_gradient_is_compared_by_its_norm() -> None:
    """V7 has a limit per dtype; a gradient scaled by the replicas (the usual bug) is far off."""
    gradient = dict(state().arrays)
    nudged = {key: each * (1 + 1e-6) for key, each in gradient.items()}
    assert close_gradients(nudged, gradient, dtype="float32").ok
    assert not close_gradients(nudged, gradient, dtype="float64").ok
    doubled = {key: each * 2 for key, each in gradient.items()}
    assert not close_gradients(doubled, gradient, dtype="bfloat16").ok
    gradient.pop("param.qkv")
    assert not close_gradients(nudged, gradient, dtype="bfloat16").ok
