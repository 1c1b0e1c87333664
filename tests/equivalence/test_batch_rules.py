"""The rules of T4: refused by default, and their algebra."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid, Refused
from wattmesh.reconfig.catalogue import Equivalence
from wattmesh.reconfig.equivalence.batch_rules import Numbers, Rule, follow, ramp

ADAM = Numbers(batch=256, learning_rate=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
SGD = Numbers(batch=256, learning_rate=0.1)
ALLOWED = tuple(Equivalence)
FACTORS = st.floats(min_value=0.05, max_value=4.0)


def adam(numbers: Numbers, batch: float) -> Numbers:
    """Follow the batch by the square-root rule."""
    return follow(numbers, batch, rule=Rule.SQUARE_ROOT, allowed=ALLOWED)


@pytest.mark.parametrize("rule", Rule)
def test_a_changed_batch_is_refused_by_default(rule: Rule) -> None:
    """The classes that are allowed unless an operator says otherwise do not cover it."""
    default = (Equivalence.EXACT, Equivalence.NUMERICAL)
    with pytest.raises(Refused, match=r"policy\.equivalence"):
        follow(ADAM, 512, rule=rule, allowed=default, critical_batch=1e9)


@given(FACTORS)
def test_the_square_root_rule_keeps_what_it_should(factor: float) -> None:
    """Noise, memory in tokens, eps over noise, and decay per token do not change with the batch."""
    new = adam(ADAM, ADAM.batch * factor)
    pairs = [
        (each.learning_rate**2 / each.batch, each.eps * each.batch**0.5) for each in (ADAM, new)
    ]
    assert pairs[1] == pytest.approx(pairs[0])
    for old_beta, beta in zip(ADAM.betas, new.betas, strict=True):
        assert new.batch / (1 - beta) == pytest.approx(ADAM.batch / (1 - old_beta))
    decay = [each.learning_rate * each.weight_decay / each.batch for each in (ADAM, new)]
    assert decay[1] == pytest.approx(decay[0])


@given(FACTORS, st.floats(min_value=0.1, max_value=2.0))
def test_the_rules_compose_and_lead_back(one: float, other: float) -> None:
    """By way of another batch is as straight there; and back is back."""
    middle, end = ADAM.batch * one, ADAM.batch * one * other
    by_way = adam(adam(ADAM, middle), end)
    straight = adam(ADAM, end)
    assert by_way.learning_rate == pytest.approx(straight.learning_rate)
    assert by_way.betas == pytest.approx(straight.betas)
    back = adam(by_way, ADAM.batch)
    assert (back.learning_rate, back.eps) == pytest.approx((ADAM.learning_rate, ADAM.eps))


def test_the_linear_rule_keeps_noise_per_token() -> None:
    """The ratio lr / B stays, so lr^2 / B^2 does; and only below the critical batch."""
    new = follow(SGD, 512, rule=Rule.LINEAR, allowed=ALLOWED, critical_batch=1024)
    assert new.learning_rate / new.batch == pytest.approx(SGD.learning_rate / SGD.batch)
    for critical in (500, None):
        with pytest.raises(InputInvalid, match="critical batch"):
            follow(SGD, 512, rule=Rule.LINEAR, allowed=ALLOWED, critical_batch=critical)
    assert follow(SGD, 128, rule=Rule.LINEAR, allowed=ALLOWED).learning_rate == 0.05


def test_a_batch_beyond_the_momentums_memory_is_refused() -> None:
    """Ten times the batch would leave beta1 = 0.9 at 0."""
    with pytest.raises(InputInvalid, match="stay below 10 times"):
        adam(ADAM, 2560)
    with pytest.raises(InputInvalid, match="above 0"):
        adam(ADAM, 0)


def test_a_ramp_is_no_faster_than_momentum_forgets() -> None:
    """From the old rate to the new one in 1 / (1 - beta) equal ratios, and it stays there."""
    rates = [ramp(1e-3, 4e-3, step=step, beta=0.9) for step in range(14)]
    assert rates[0] == 1e-3
    assert rates[10:] == pytest.approx([4e-3] * 4)
    ratios = [b / a for a, b in itertools.pairwise(rates[:11])]
    assert ratios == pytest.approx([4**0.1] * 10)
    assert ramp(1.0, 2.0, step=1, beta=0.0) == 2.0
