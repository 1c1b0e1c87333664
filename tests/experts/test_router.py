"""The router: exactly plain without costs, leaning with them, and never the end of a training."""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from examples.pretrain.config import preset
from examples.pretrain.experts import MixtureOfExperts
from examples.routing.__main__ import cheap_load, differing_choices
from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.experts.router import (
    EnergyRouter,
    RouterMode,
    load_factors,
    unusable,
)

DIM, EXPERTS, PER_TOKEN = 8, 6, 2
COSTS = (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0)
NEUTRAL = (0.0,) * EXPERTS


def router(mode: RouterMode | str, seed: int = 0, **other: Any) -> EnergyRouter:
    """A router with drawn weights."""
    torch.manual_seed(seed)
    return EnergyRouter(DIM, EXPERTS, PER_TOKEN, mode=mode, **other)


def batches(count: int, tokens: int = 256) -> list[Tensor]:
    """Draw tokens, the same for all."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(tokens, DIM, generator=generator) for _ in range(count)]


def shares(found: EnergyRouter, steps: int, *, tokens: int = 256) -> Tensor:
    """Balance for some steps; give the mean load of each expert over the last quarter."""
    total = torch.zeros(EXPERTS)
    for step, x in enumerate(batches(steps, tokens)):
        found(x)
        if step >= 3 * steps // 4:
            total += found.counts_X
        found.rebalance(found.counts_X.clone())
    return total / total.mean()


def trained(mode: RouterMode, costs: Sequence[float], strength: float) -> list[Tensor]:
    """Train the gate for some steps towards loads and weights; give all that came of it."""
    found = router(mode, bias_rate=0.01)
    found.set_costs(costs, strength)
    optimizer = torch.optim.AdamW(found.parameters(), lr=0.05)
    said: list[Tensor] = []
    for x in batches(6):
        routed = found(x)
        loss = (routed.weights_NP.sum(1) * x[:, 0]).mean() + found.balance_loss(routed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.rebalance(found.counts_X.clone())
        said += [routed.chosen_NP, routed.weights_NP.detach(), loss.detach()]
    return [*said, found.gate.weight.detach(), found.bias_X]


@pytest.mark.parametrize("mode", list(RouterMode))
def test_without_costs_every_mode_is_off_to_the_bit(mode: RouterMode) -> None:
    """At any strength: choices, weights, losses, gradients and biases of whole steps."""
    plain = trained(RouterMode.OFF, NEUTRAL, 0.0)
    assert all(map(torch.equal, plain, trained(mode, NEUTRAL, 1.5)))
    assert all(map(torch.equal, plain, trained(mode, (-0.0,) * EXPERTS, 1.5)))


@pytest.mark.parametrize("mode", list(RouterMode))
def test_costs_that_are_the_same_for_all_experts_are_none(mode: RouterMode) -> None:
    """Each on GPUs of all kinds: what rounding leaves of a mean, and a mean that is not 0."""
    plain = trained(RouterMode.OFF, NEUTRAL, 0.0)
    for costs in ((-1.5e-16,) * EXPERTS, (0.7,) * EXPERTS, (0.7, *(0.71,) * (EXPERTS - 1))):
        assert all(map(torch.equal, plain, trained(mode, costs, 1.5)))


@pytest.mark.parametrize("mode", [RouterMode.SOFT, RouterMode.TILT, RouterMode.DUAL])
def test_with_costs_every_mode_but_off_differs(mode: RouterMode) -> None:
    """Sabotaged twin: what says `inert` above would see a lean."""
    plain = trained(RouterMode.OFF, NEUTRAL, 0.0)
    assert not all(map(torch.equal, plain, trained(mode, COSTS, 0.5)))
    assert all(map(torch.equal, plain, trained(RouterMode.OFF, COSTS, 0.5)))


def test_it_replaces_the_examples_own_router_to_the_bit() -> None:
    """Same weights, same tokens: what the example's mixture computes, and its bias after a step."""
    config = preset("tiny-moe").model
    torch.manual_seed(3)
    mixture = MixtureOfExperts(config)
    for parameter in mixture.parameters():
        nn.init.normal_(parameter, std=0.5)
    found = EnergyRouter(config.dim, config.experts, config.experts_per_token)
    found.gate.weight.data.copy_(mixture.router.weight)
    for step in range(3):
        x = torch.randn(2, 5, config.dim, generator=torch.Generator().manual_seed(step))
        chosen_NP, weights_NP = mixture.choose(x)
        mixture(x)
        routed = found(x)
        assert torch.equal(routed.chosen_NP, chosen_NP)
        assert torch.equal(routed.weights_NP, weights_NP)
        counts_X = mixture.counts_X.clone()
        assert torch.equal(found.counts_X, counts_X)
        mixture.rebalance(counts_X.double(), 1e-3)
        found.rebalance(counts_X)
        assert torch.equal(found.bias_X, mixture.bias_X)


def test_the_published_term_is_cancelled_by_balancing() -> None:
    """The theorem: loss-free balancing with the term is the one without it, at another bias.

    Beginning at bias + strength * cost the choices are the same in every step; beginning anywhere,
    loads end where they end without the term. The lean of `tilt` stays.
    """
    assert differing_choices(50, 0.03) == (0, 50 * 256 * PER_TOKEN)
    even = cheap_load(RouterMode.OFF, 2e-3, 400, 0.1)
    assert abs(cheap_load(RouterMode.SOFT, 2e-3, 400, 0.1) - even) < 0.01
    assert cheap_load(RouterMode.TILT, 2e-3, 400, 0.1) - even > 0.08


def test_without_balancing_the_published_term_moves_loads() -> None:
    """So it is the balancing that cancels it, not a term that does nothing."""
    even = cheap_load(RouterMode.OFF, 0.0, 20, 0.5)
    assert cheap_load(RouterMode.SOFT, 0.0, 20, 0.5) - even > 0.1


def test_tilt_steers_loads_to_their_targets() -> None:
    """Within 2 % of what the factors say, cap included."""
    found = router(RouterMode.TILT, bias_rate=2e-3, load_cap=1.15)
    found.set_costs((-2.0, -1.0, 0.0, 0.0, 1.0, 2.0), 0.1)
    torch.testing.assert_close(shares(found, 600), found.factor_X, atol=0.02, rtol=0)
    assert float(found.factor_X.max()) == pytest.approx(1.15)


def test_prices_of_dual_only_push_down() -> None:
    """No bias is above 0, nobody's load stays above the cap, and cheap experts get more."""
    found = router(RouterMode.DUAL, bias_rate=2e-3)
    shares(found, 100)
    before = [found(x).chosen_NP for x in batches(2)]
    found.set_costs(NEUTRAL, 0.0)
    assert all(map(torch.equal, before, [found(x).chosen_NP for x in batches(2)]))
    found.set_costs(COSTS, 0.02)
    after = shares(found, 600)
    assert float(found.bias_X.max()) <= 0.0
    assert float(after.max()) < 1.15 + 0.02
    assert float(after[:3].mean()) > 1.05


@pytest.mark.parametrize(
    ("costs", "strength", "sentence"),
    [
        ((math.nan, *COSTS[1:]), 0.5, "not finite"),
        ((math.inf, *COSTS[1:]), 0.5, "not finite"),
        (COSTS, math.nan, "not finite"),
        (COSTS, -1.0, "the strength -1 is not between 0 and 8"),
        (COSTS, 9.0, "the strength 9 is not between"),
        (COSTS[:5], 0.5, "5 expert costs for 6 experts"),
        ((), 0.5, "0 expert costs for 6 experts"),
        ((2.5, *COSTS[1:]), 0.5, "beyond"),
        (("a",) * EXPERTS, 0.5, "no numbers"),
        ((None,) * EXPERTS, 0.5, "no numbers"),
        ((10**400,) * EXPERTS, 0.5, "no numbers"),
    ],
)
def test_costs_that_cannot_be_used_count_as_none(
    costs: Any, strength: float, sentence: str
) -> None:
    """One sentence, and all zeros: also where good ones were in force before."""
    for mode in RouterMode:
        found = router(mode)
        assert found.set_costs(COSTS, 0.5) == ""
        assert sentence in found.set_costs(costs, strength)
        assert torch.equal(found.lean_X, torch.zeros(EXPERTS))
        assert torch.equal(found.factor_X, torch.ones(EXPERTS))


@settings(max_examples=100)
@given(
    scores=st.lists(st.floats(-2, 2), min_size=1, max_size=12),
    strength=st.floats(0, 8),
    cap=st.floats(1, 3),
)
def test_load_factors_have_mean_1_and_keep_the_cap(
    scores: list[float], strength: float, cap: float
) -> None:
    """For all scores; cheaper experts never get less, and equal ones exactly 1."""
    factors = load_factors(scores, strength, cap)
    assert math.fsum(factors) / len(factors) == pytest.approx(1)
    assert max(factors) <= cap * (1 + 1e-9)
    assert min(factors) >= 0
    by_score = [factor for _, factor in sorted(zip(scores, factors, strict=True))]
    assert all(a >= b * (1 - 1e-12) for a, b in itertools.pairwise(by_score))
    assert set(load_factors([scores[0]] * 7, strength, cap)) == {1.0}


@pytest.mark.parametrize("mode", list(RouterMode))
def test_it_compiles_into_one_graph(mode: RouterMode) -> None:
    """Without a graph break; costs and biases change values, and nothing is compiled anew."""
    found = router(mode)
    found.set_costs(COSTS, 0.1)
    counter = CompileCounter()
    compiled = torch.compile(found, backend=counter, fullgraph=True)
    for x in batches(2):
        assert torch.equal(compiled(x).chosen_NP, found(x).chosen_NP)
        found.rebalance(found.counts_X.clone())
        found.set_costs(COSTS[::-1], 0.3)
    assert counter.frame_count == 1


def test_its_buffers_stay_fp32_and_travel_with_the_checkpoint() -> None:
    """A model cast to bf16 keeps small steps of the bias; a loaded one goes on leaning."""
    found = router(RouterMode.TILT).to(torch.bfloat16)
    assert found.gate.weight.dtype == torch.bfloat16
    found.set_costs(COSTS, 0.2)
    found.bias_X += 1e-3
    routed = found.bfloat16()(batches(1)[0].bfloat16())
    assert routed.weights_NP.dtype == torch.float32
    assert {found.bias_X.dtype, found.factor_X.dtype} == {torch.float32}
    other = router(RouterMode.TILT, seed=9)
    other.load_state_dict(found.state_dict())
    assert torch.equal(other.factor_X, found.factor_X)
    assert torch.equal(other.bias_X, found.bias_X)
    assert router(RouterMode.TILT).double().bias_X.dtype == torch.float32


def test_an_auxiliary_loss_leans_with_the_targets() -> None:
    """It is least near loads of the factors in `tilt`, and near equal loads in `off`."""
    counts = torch.tensor([1.1, 1.1, 1.1, 0.9, 0.9, 0.9])
    x = batches(1)[0]
    for mode, least in ((RouterMode.OFF, torch.ones(EXPERTS)), (RouterMode.TILT, counts)):
        found = router(mode, bias_rate=0.0)
        found.set_costs(COSTS, 0.5 * math.log(1.1 / 0.9))
        routed = found(x)
        loads = {"even": torch.ones(EXPERTS), "leaning": counts, "against": counts.flip(0)}
        said = {
            name: float(found.balance_loss(routed._replace(scores_NX=each[None] / EXPERTS), each))
            for name, each in loads.items()
        }
        wanted = "even" if torch.equal(least, torch.ones(EXPERTS)) else "leaning"
        assert min(said, key=lambda name: said[name]) == wanted, said


def test_choice_may_see_the_denoising_step() -> None:
    """At first each step chooses alike; what one of them learns, the others do not."""
    found = router(RouterMode.OFF, timesteps=3)
    x = batches(1)[0]
    plain = found(x).chosen_NP
    for step in range(3):
        assert torch.equal(found(x, torch.full((len(x),), step)).chosen_NP, plain)
    assert found.timesteps is not None
    with torch.no_grad():
        found.timesteps.weight[1, 4] = 50.0
    assert (found(x, torch.ones(len(x), dtype=torch.long)).chosen_NP == 4).any(dim=1).all()
    assert torch.equal(found(x, torch.zeros(len(x), dtype=torch.long)).chosen_NP, plain)


def test_sigmoid_scores_and_normalized_weights() -> None:
    """As DeepSeek-V3 has them: weights of a token sum to 1."""
    found = router(RouterMode.TILT, score="sigmoid", normalize=True)
    routed = found(batches(1)[0])
    torch.testing.assert_close(routed.weights_NP.sum(1), torch.ones(256))
    assert torch.equal(routed.scores_NX, torch.sigmoid(found.gate(batches(1)[0])))


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"mode": "hard"}, "mode 'hard' is not one of off, soft, tilt, dual"),
        ({"score": "relu"}, "neither softmax nor sigmoid"),
        ({"load_cap": 0.9}, "load_cap 0.9 is below 1"),
        ({"bias_rate": -1.0}, "below 0"),
        ({"timesteps": -1}, "below 0"),
    ],
)
def test_routers_that_cannot_be_are_refused(other: dict[str, Any], sentence: str) -> None:
    """When the model is built, not in its first step."""
    with pytest.raises(InputInvalid, match=sentence):
        router(**({"mode": RouterMode.OFF} | other))
    with pytest.raises(InputInvalid, match="7 of 6 experts"):
        EnergyRouter(DIM, EXPERTS, 7)


def test_an_empty_batch_is_routed() -> None:
    """No tokens, no counts, no bias that moves, no NaN."""
    for mode in RouterMode:
        found = router(mode)
        found.set_costs(COSTS, 0.5)
        routed = found(torch.zeros(0, DIM))
        assert routed.chosen_NP.shape == (0, PER_TOKEN)
        assert found.balance_loss(routed, torch.zeros(EXPERTS)).item() == 0
        before = found.bias_X.clone()
        found.rebalance(found.counts_X.clone())
        assert torch.equal(found.bias_X, before)


def test_unusable_accepts_what_is_right() -> None:
    """Whole numbers too, and the edge of the range."""
    assert unusable([2, -2], 8, 2) == ""


@pytest.mark.parametrize("mode", list(RouterMode))
def test_a_strength_of_0_leaves_the_bits_of_the_checkpoint(mode: RouterMode) -> None:
    """No -0 of a cheap expert's cost, which a digest would tell from the 0 of no costs."""
    plain, told = router(mode), router(mode)
    told.set_costs(COSTS, 0.0)
    for name, each in plain.state_dict().items():
        assert torch.equal(each.view(torch.int32), told.state_dict()[name].view(torch.int32))


def test_a_router_from_the_meta_device_begins_like_any() -> None:
    """Whether it gets its memory empty or from a checkpoint; a cast before leaves fp32."""
    with torch.device("meta"):
        emptied, assigned = router(RouterMode.TILT), router(RouterMode.TILT)
    emptied.to(torch.bfloat16).to_empty(device="cpu")
    plain = dict(router(RouterMode.TILT).named_buffers())
    for name, each in emptied.named_buffers():
        assert (each.dtype, each.tolist()) == (plain[name].dtype, plain[name].tolist())
    assigned.load_state_dict(router(RouterMode.TILT).state_dict(), assign=True)
    assigned(batches(1)[0])
    assert int(assigned.counts_X.sum()) == 256 * PER_TOKEN


@pytest.mark.parametrize("mode", RouterMode)
@pytest.mark.parametrize("how", ["of all modules", "patched"])
def test_nothing_changes_that_somebody_else_saw_of_the_gate(how: str, mode: RouterMode) -> None:
    """A hook of all modules, or a `forward` that was put in the gate's place."""
    found = router(mode)
    found.set_costs(COSTS, 1.0)
    kept: list[Tensor] = []
    if how == "patched":
        plain = found.gate.forward

        def patched(x: Tensor) -> Tensor:
            kept.append(plain(x))
            return kept[-1]

        found.gate.forward = patched  # type: ignore[method-assign, assignment]
        found(batches(1)[0])
    else:
        hook = nn.modules.module.register_module_forward_hook(
            lambda module, _, said: kept.append(said) if module is found.gate else None
        )
        try:
            found(batches(1)[0])
        finally:
            hook.remove()
    assert torch.equal(kept[0], functional.linear(batches(1)[0], found.gate.weight))


@pytest.mark.parametrize("mode", RouterMode)
def test_selective_recomputation_keeps_what_the_gate_gave(mode: RouterMode) -> None:
    """What it has kept of the first forward pass is what the gate gave, so it trains on."""

    def policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        saved = operator is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    found = router(mode)
    found.set_costs(COSTS, 1.0)
    plain, selective = (batches(1)[0].requires_grad_() for _ in range(2))
    contexts = partial(create_selective_checkpoint_contexts, policy)
    recomputed = checkpoint(found, selective, use_reentrant=False, context_fn=contexts)
    for routed in (found(plain), recomputed):
        torch.autograd.backward(routed.weights_NP.square().sum())
    assert plain.grad is not None
    assert selective.grad is not None
    assert torch.equal(plain.grad, selective.grad)


@pytest.mark.parametrize("mode", RouterMode)
def test_nothing_changes_that_another_gate_holds(mode: RouterMode) -> None:
    """A gate that keeps its output for the gradient, or gives back its input: both stay whole."""
    found = EnergyRouter(8, 8, 2, mode=mode)
    found.gate = nn.Sequential(nn.Linear(8, 8), nn.Tanh())  # type: ignore[assignment]
    found.set_costs((1.0, -1.0) * 4, 0.5)
    torch.autograd.backward(found(torch.randn(5, 8)).weights_NP.sum())
    found.gate = nn.Identity()  # type: ignore[assignment]
    x = torch.randn(5, 8)
    before = x.clone()
    found(x)
    assert torch.equal(x, before)
