"""Mixtures of Hugging Face's own classes: untouched until they lean, then as loads should be."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import (
    MixtralForCausalLM,
    MixtralSparseMoeBlock,
)
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from tests.experts.standing import Standing
from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.experts.huggingface import HuggingFaceRouters
from wattmesh.integrations.pytorch.experts.paired_probe import paired_probe
from wattmesh.integrations.pytorch.experts.recorder import record_routing
from wattmesh.integrations.pytorch.experts.router import RouterMode
from wattmesh.reconfig.layout import Layout

DIM, EXPERTS, PER_TOKEN = 16, 8, 2
COSTS = (1.0, -1.0) * (EXPERTS // 2)
COMMON: dict[str, Any] = {
    "hidden_size": DIM,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": PER_TOKEN,
    "vocab_size": 64,
}
OF_QWEN: dict[str, Any] = {"num_experts": EXPERTS, "moe_intermediate_size": 32}
OF_DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
}


def block(kind: str) -> nn.Module:
    """One tiny block, with weights that are drawn."""
    torch.manual_seed(0)
    mixtral: Any = MixtralSparseMoeBlock
    qwen2: Any = Qwen2MoeSparseMoeBlock
    made: dict[str, Any] = {
        "mixtral": lambda: mixtral(MixtralConfig(**COMMON, num_local_experts=EXPERTS)),
        "qwen2": lambda: qwen2(Qwen2MoeConfig(**COMMON, **OF_QWEN)),
        "qwen3": lambda: Qwen3MoeSparseMoeBlock(
            Qwen3MoeConfig(**COMMON, **OF_QWEN, norm_topk_prob=True)
        ),
        "deepseek2": lambda: DeepseekV2Moe(
            DeepseekV2Config(**COMMON, **OF_DEEPSEEK, topk_method="group_limited_greedy")
        ),
        "deepseek3": lambda: DeepseekV3MoE(DeepseekV3Config(**COMMON, **OF_DEEPSEEK)),
    }
    found: nn.Module = made[kind]()
    for each in found.parameters():
        nn.init.normal_(each, std=0.3)
    return found


KINDS = ("mixtral", "qwen2", "qwen3", "deepseek2", "deepseek3")


def batch(seed: int, tokens: int = 256) -> Tensor:
    """Draw tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, tokens, DIM, generator=generator)


def computed(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and all gradients."""
    model.zero_grad()
    y = model(x)
    torch.autograd.backward(y.square().mean())
    return [y.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_does_not_lean_is_the_untouched_one_to_the_bit(kind: str) -> None:
    """Off with costs, every mode without, and a lean that was taken back: outputs, gradients."""
    x, plain = batch(1), computed(block(kind), batch(1))
    for mode in RouterMode:
        hooked = block(kind)
        routers = HuggingFaceRouters([hooked], mode=mode, bias_rate=0.1)
        if mode is RouterMode.OFF:
            assert routers.set_costs(COSTS, 0.5) == ""
            routers.rebalance(torch.ones(1, EXPERTS))
        else:
            routers.set_costs(COSTS, 0.5)
            routers.rebalance(torch.arange(EXPERTS).float()[None])
            assert not torch.equal(computed(hooked, x)[0], plain[0])
            assert "not finite" in routers.set_costs((float("nan"),) * EXPERTS, 0.5)
            routers.rebalance(torch.arange(EXPERTS).float()[None])
            assert "all experts cost the same" in routers.set_costs((-1e-16,) * EXPERTS, 0.5)
            routers.rebalance(torch.arange(EXPERTS).float()[None])
        found = computed(hooked, x)
        assert len(found) == len(plain)
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True)), mode


@pytest.mark.parametrize("kind", KINDS)
def test_the_choice_anew_is_the_models_own_where_the_lean_is_nothing(kind: str) -> None:
    """A lean too small to matter gives the block's own output: groups, weights and scale."""
    x, plain = batch(2), block(kind)(batch(2))
    for mode in (RouterMode.SOFT, RouterMode.TILT, RouterMode.DUAL):
        hooked = block(kind)
        HuggingFaceRouters([hooked], mode=mode).set_costs(COSTS, 1e-12)
        torch.testing.assert_close(hooked(x), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [RouterMode.SOFT, RouterMode.TILT, RouterMode.DUAL])
def test_loads_lean_to_cheap_experts(kind: str, mode: RouterMode) -> None:
    """Over steps of a training: `tilt` comes to its targets, the others lean that way."""
    hooked = block(kind)
    routers = HuggingFaceRouters([hooked], mode=mode, bias_rate=0.01)
    shares = []
    for costs in ((0.0,) * EXPERTS, COSTS):
        routers.set_costs(costs, 0.3)
        total = torch.zeros(EXPERTS)
        # Nothing moves where all cost the same: its last steps stand for all.
        for step in range(0 if any(costs) else 60, 80):
            hooked(batch(step))
            total += routers.counts()[0] * (step >= 60)
            routers.rebalance(routers.counts())
        shares.append(total / total.mean())
    dear, cheap = shares[1][::2].mean(), shares[1][1::2].mean()
    assert cheap - dear > shares[0][1::2].mean() - shares[0][::2].mean() + 0.05
    if mode is RouterMode.TILT and "deepseek" not in kind:
        assert float(cheap) == pytest.approx(1.15, abs=0.05)
        assert float(shares[1].max()) < 1.35


def test_a_whole_model_trains_with_it_and_keeps_biases_in_its_checkpoint() -> None:
    """Two layers of Mixtral: counts by layer, and a state dict that has what leans."""
    torch.manual_seed(0)
    config = MixtralConfig(**COMMON, num_local_experts=EXPERTS)
    model = MixtralForCausalLM(config)
    routers = HuggingFaceRouters([model], mode="tilt", bias_rate=0.05)
    assert routers.set_costs(COSTS, 0.3) == ""
    tokens = torch.arange(48).reshape(2, 24)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    assert routers.counts().sum(1).tolist() == [48 * PER_TOKEN] * 2
    routers.rebalance(routers.counts())
    state = model.state_dict()
    biases = [each for name, each in state.items() if name.endswith("gate.lean_bias_X")]
    assert len(biases) == 2
    assert all(each.any() for each in biases)
    other = MixtralForCausalLM(config)
    HuggingFaceRouters([other], mode="tilt")
    other.load_state_dict(state)
    nn.Module.train(model, False)
    nn.Module.train(other, False)
    assert torch.equal(model(input_ids=tokens).logits, other(input_ids=tokens).logits)
    assert routers.set_costs((0.0,) * EXPERTS, 0.3) == ""
    assert not torch.equal(model(input_ids=tokens).logits, other(input_ids=tokens).logits)
    assert "7 expert costs for 8 experts" in routers.set_costs(COSTS[:7], 0.3)


class MixtralSparseMoeBlockOfOld(nn.Module):
    """A block as older versions have it: its gate is a plain layer."""

    def __init__(self) -> None:
        """Make the gate."""
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)


def test_what_does_not_look_as_expected_is_one_sentence() -> None:
    """A model without mixtures, a gate of another class, a gate that answers otherwise."""
    with pytest.raises(InputInvalid, match="no mixture of Mixtral"):
        HuggingFaceRouters([nn.Linear(2, 2)])
    MixtralSparseMoeBlockOfOld.__name__ = "MixtralSparseMoeBlock"
    with pytest.raises(InputInvalid, match=r"is a Linear in this version of transformers; 5\.24"):
        HuggingFaceRouters([MixtralSparseMoeBlockOfOld()])
    hooked = block("qwen3")
    HuggingFaceRouters([hooked])
    gate: Any = hooked.gate
    gate.forward = lambda x: x @ gate.weight.T
    with pytest.raises(InputInvalid, match="does not give"):
        hooked(batch(0))


def test_a_checkpoint_from_before_the_hooks_is_loaded_and_nothing_leans() -> None:
    """Strictly, over a lean; a checkpoint that lacks a gate's own weight is still refused."""
    plain = block("mixtral").state_dict()
    hooked = block("mixtral")
    routers = HuggingFaceRouters([hooked])
    routers.set_costs(COSTS, 0.5)
    hooked.load_state_dict(plain)
    assert torch.equal(hooked(batch(1)), block("mixtral")(batch(1)))
    with pytest.raises(RuntimeError, match=r"gate\.weight"):
        hooked.load_state_dict({name: w for name, w in plain.items() if name != "gate.weight"})


def test_a_launch_that_was_told_no_costs_keeps_the_lean_that_it_loads() -> None:
    """Its biases move towards the same loads, bit for bit; not back to equal ones."""
    told, loaded = block("mixtral"), block("mixtral")
    first, second = HuggingFaceRouters([told]), HuggingFaceRouters([loaded])
    first.set_costs(COSTS, 0.5)
    loaded.load_state_dict(told.state_dict())
    # Loads that are even: an equal target would move nothing.
    counts = torch.full((1, EXPERTS), 64.0)
    for each in (first, second):
        each.rebalance(counts)
    gates: list[Any] = [told.gate, loaded.gate]
    assert torch.equal(gates[0].lean_bias_X, gates[1].lean_bias_X)
    assert bool((gates[0].lean_bias_X[::2] < 0).all())
    assert bool((gates[0].lean_bias_X[1::2] > 0).all())


def test_hooks_before_the_model_has_its_memory_count_and_are_not_made_twice() -> None:
    """Made on the meta device; a second set of hooks would choose anew from the first one's."""
    with torch.device("meta"):
        model = block("mixtral")
    routers = HuggingFaceRouters([model])
    model.to_empty(device="cpu")
    for each in (*model.parameters(), *model.buffers()):
        nn.init.zeros_(each)
    model(batch(1))
    assert float(routers.counts().sum()) == 256 * PER_TOKEN
    with pytest.raises(InputInvalid, match="hook them once"):
        HuggingFaceRouters([model])


def test_a_model_from_the_meta_device_is_assigned_a_checkpoint_from_before_the_hooks() -> None:
    """Nothing leans in it, on the device of what was loaded."""
    plain = block("mixtral")
    with torch.device("meta"):
        model = block("mixtral")
    routers = HuggingFaceRouters([model])
    model.load_state_dict(plain.state_dict(), assign=True)
    assert torch.equal(model(batch(1)), plain(batch(1)))
    assert routers.set_costs(COSTS, 0.5) == ""


def test_costs_are_taken_while_a_gate_is_sharded() -> None:
    """FSDP1 leaves a flat part of its weight between two passes; experts stay as many."""
    model: Any = block("mixtral")
    routers = HuggingFaceRouters([model])
    model.gate.weight = nn.Parameter(model.gate.weight.detach().flatten()[:3])
    assert routers.set_costs(COSTS, 0.5) == ""
    assert bool(model.gate.lean_X.any())


@pytest.mark.parametrize("kind", ["mixtral", "deepseek3"])
def test_what_gates_choose_can_be_recorded(tmp_path: Path, kind: str) -> None:
    """As it is after the lean; of two gates, in their order."""
    model = nn.ModuleList([block(kind), block(kind)])
    routers = HuggingFaceRouters([model], mode=RouterMode.DUAL)
    routers.set_costs(COSTS, 0.5)
    session = Standing(tmp_path, Layout())
    record_routing(session, lambda _: [routers])
    session.save_step()
    chosen: list[Any] = []
    for each in model:
        gate: Any = each.gate
        gate.register_forward_hook(lambda _, __, said: chosen.append(said[2].tolist()))
        each(torch.randn(2, 5, DIM))
    session.position.step += 1
    session.save_step()
    recorded = json.loads(session.routing_file.read_text())
    assert recorded["experts"] == EXPERTS
    assert recorded["chosen"] == chosen
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [RouterMode.SOFT, RouterMode.TILT, RouterMode.DUAL])
def test_a_pair_is_the_leaning_block_and_the_untouched_one_to_the_bit(
    kind: str, mode: RouterMode
) -> None:
    """By the blocks' own classes; afterwards it leans as before. Without a lean both are one."""
    hooked, plain, x = block(kind), block(kind), batch(4)

    @torch.no_grad()
    def loss(model: nn.Module) -> float:
        return float(model(x).square().mean())

    routers = HuggingFaceRouters([hooked], mode=mode, bias_rate=0.1)
    measure = paired_probe(lambda _: loss(hooked), lambda _: [routers])
    state: Any = None
    untouched = loss(plain)
    assert measure(state) == (untouched, untouched)
    routers.set_costs(COSTS, 0.5)
    for _ in range(5):
        hooked(batch(3))
        routers.rebalance(routers.counts())
    before = {name: each.clone() for name, each in hooked.state_dict().items()}
    counts, leaning = routers.counts(), loss(hooked)
    assert measure(state) == (leaning, untouched)
    assert leaning != untouched
    assert loss(hooked) == leaning
    assert torch.equal(routers.counts(), counts)
    after = hooked.state_dict()
    assert all(torch.equal(each, after[name]) for name, each in before.items())


def test_a_pair_of_a_whole_model_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    """Mixtral's two layers, where the second one sees what the first one made."""
    torch.manual_seed(0)
    model: Any = MixtralForCausalLM(MixtralConfig(**COMMON, num_local_experts=EXPERTS))
    model.eval()
    tokens = torch.arange(32)[None] % 64

    def probe(_: Any) -> float:
        return float(model(input_ids=tokens, labels=tokens).loss.detach())

    routers = HuggingFaceRouters([model], mode=RouterMode.SOFT)
    untouched, state = probe(None), cast(Any, None)
    routers.set_costs(COSTS, 2.0)
    leaning, plain = paired_probe(probe, lambda _: [routers])(state) or (0.0, 0.0)
    assert plain == untouched
    assert leaning == probe(None) != plain
    assert caplog.text == ""
