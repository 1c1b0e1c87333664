"""V9 to V11 hold for the tilted softmax, and fail for gates and schedules that break T5."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.equivalence.bias import (
    Floats,
    energy_falls,
    shift_is_bounded,
    strength_settles,
    tilted_softmax,
)

STRENGTHS = (0.0, 0.1, 0.5, 1.0, 2.0, 8.0)


def router(seed: int, *, scale: float = 2.0) -> tuple[Floats, Floats]:
    """Logits of a frozen router for 64 tokens, and z-scored costs of 8 experts."""
    draw = np.random.default_rng(seed)
    costs_E = draw.standard_normal(8)
    return draw.standard_normal((64, 8)) * scale, (costs_E - costs_E.mean()) / costs_E.std()


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 30), scale=st.floats(0.01, 20.0))
def test_a_tilted_softmax_keeps_to_t5(seed: int, scale: float) -> None:
    """Cost falls with the strength, and the choice moves no further than the bound."""
    logits_TE, costs_E = router(seed, scale=scale)
    assert energy_falls(tilted_softmax, logits_TE, costs_E, STRENGTHS).ok
    assert shift_is_bounded(tilted_softmax, logits_TE, costs_E, STRENGTHS).ok


def test_the_bound_is_tight() -> None:
    """Two experts at the worst odds come within a thousandth of it, so it cannot be much smaller.

    The worst odds for a tilt of ratio s are 1 : sqrt(s) (docs/convergence.md, T5 ii).
    """
    strength, costs_E = 1.0, np.array([0.0, 2.0])
    logits_TE = np.array([[0.0, strength * 2.0 / 2]])
    found = shift_is_bounded(tilted_softmax, logits_TE, costs_E, [strength])
    assert found.ok
    assert found.measured > 0.999


def test_a_gate_that_leans_the_wrong_way_is_seen() -> None:
    """Sabotaged twin: the sign of the tilt."""

    def wrong(logits_TE: Floats, costs_E: Floats, strength: float) -> Floats:
        return np.asarray(tilted_softmax(logits_TE, costs_E, -strength))

    assert not energy_falls(wrong, *router(3), STRENGTHS).ok


def test_a_gate_that_leans_twice_is_seen() -> None:
    """Sabotaged twin: the tilt is put on twice (in the router and in the dispatcher)."""

    def twice(logits_TE: Floats, costs_E: Floats, strength: float) -> Floats:
        return np.asarray(tilted_softmax(logits_TE, costs_E, 2 * strength))

    assert energy_falls(twice, *router(3), STRENGTHS).ok
    assert not shift_is_bounded(twice, *router(3), STRENGTHS).ok


def test_a_schedule_that_settles_is_fine() -> None:
    """A strength that rises over 100 steps and stays has a small variation."""
    ramp = [min(1.0, step / 100) for step in range(1000)]
    found = strength_settles(ramp, limit=0.002, frozen_from=200)
    assert found.ok
    assert found.measured == pytest.approx(0.001)


@pytest.mark.parametrize(
    "strengths",
    [
        [float(step % 2) for step in range(1000)],
        [0.0] * 998 + [0.0, 0.1],
        [0.3],
        [],
    ],
)
def test_a_schedule_that_does_not_settle_is_seen(strengths: list[float]) -> None:
    """Sabotaged twins: one that flips, one that still moves in the decay, and none at all."""
    assert not strength_settles(strengths, limit=0.002, frozen_from=200).ok
