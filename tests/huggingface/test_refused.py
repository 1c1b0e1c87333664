"""What cannot be moved is refused in one sentence, before the model is changed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralForCausalLM

from tests.huggingface.job import Has, make_model
from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch import huggingface
from wattmesh.integrations.pytorch.huggingface.sharding import SUMMED
from wattmesh.integrations.pytorch.meshes import Meshes
from wattmesh.reconfig.layout import Layout, Ranks


@pytest.fixture(scope="module", autouse=True)
def four_ranks() -> Iterator[None]:
    """A process group of four, of which only this one is there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(pp=2, dp_shard=2), "has pp = 2; a model is moved over"),
        (Layout(cp=4), "has cp = 4"),
        (Layout(dp_shard=4, ep=2), "has ep = 2"),
        (Layout(dp_shard=4, recompute=True), "recompute"),
        (Layout(dp_shard=4, micro_batch=1), "micro_batch"),
        (Layout(dp_shard=4, dp_replicate=4), "batch of 8 samples cannot be shared by 16"),
    ],
    ids=str,
)
def test_a_layout_that_is_not_carried_out_is_refused(layout: Layout, words: str) -> None:
    """Also before anything is launched, by `attach`."""
    with pytest.raises(InputInvalid, match=words):
        huggingface.check_layout(layout, 8)
    with pytest.raises(InputInvalid, match=words):
        huggingface.attach(
            "x", nn.Module, nn.Module, lambda *_: [], global_batch=8, seq_len=4, layout=layout,
            checkpoint_dir="nowhere",
        )  # fmt: skip


def test_what_is_named_schedule_twice_is_refused() -> None:
    """One of them would not be carried."""
    recipe = huggingface.Recipe(
        model=_llama,
        optimizer=lambda model: (torch.optim.SGD(model.parameters()), object()),
        loader=lambda *_: [],
        global_batch=8,
        seq_len=4,
        extra=lambda: {"schedule": torch.amp.GradScaler("cpu")},
    )
    with pytest.raises(InputInvalid, match="`extra` names a 'schedule'"):
        huggingface.build_state(
            recipe, Layout(dp_shard=4), Ranks(participants=(0, 1, 2, 3), global_rank=0)
        )


def test_what_is_carried_out_is_not_refused() -> None:
    """The sabotaged twin of all these."""
    huggingface.check_layout(Layout(dp_replicate=2, dp_shard=2, tp=2), 8)


def _llama(**has: Any) -> Any:
    return make_model(Has(dtype="float32", **has))


def _planned(plan: dict[str, str]) -> Any:
    model = _llama()
    model.tp_plan = plan
    return model


class Adapted(nn.Linear):
    """A linear layer that is more than one, as an adapter's is."""


def _adapted() -> Any:
    model = _llama()
    model.model.layers[0].self_attn.q_proj = Adapted(32, 32, bias=False)
    return model


def _on_meta() -> Any:
    return _llama().to("meta")


def _mixtral() -> Any:
    config = MixtralConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=16, num_local_experts=2,
    )  # fmt: skip
    return MixtralForCausalLM(config)


def _half_tied() -> Any:
    model = _llama()
    plan = {key: style for key, style in model.tp_plan.items() if "embed" not in key}
    model.tp_plan = plan
    return model


def _learning_activation(style: str = "") -> Any:
    """As Apertus has: it sees a part of the features, and its plan does not name it."""
    model = _llama()
    model.model.layers[0].mlp.act_fn = nn.PReLU()
    if style:
        model.tp_plan = {**model.tp_plan, "model.layers.*.mlp.act_fn": style}
    return model


def _nine_words() -> Any:
    model = _llama(tied=False)
    model.lm_head = nn.Linear(32, 9, bias=False)
    return model


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (_learning_activation, r"layers\.0\.mlp\.act_fn\.weight lies where each of tp = 4 ranks"),
        (_nine_words, "has 9 to be shared by tp = 4 ranks.* leaves nothing for some"),
        (lambda: nn.Linear(4, 4), "makes a Linear, which is no PreTrainedModel"),
        (_on_meta, "on the meta device and has no values"),
        (lambda: _planned({}), "LlamaForCausalLM has no tensor-parallel plan, so tp = 4"),
        (lambda: _llama(heads=(8, 2)), "num_key_value_heads = 2 cannot be shared by tp = 4"),
        (lambda: _llama(heads=(2, 2)), "num_attention_heads = 2 cannot be shared by tp = 4"),
        (_mixtral, "tensor-parallel style .*; tested are"),
        (_adapted, r"layers\.0\.self_attn\.q_proj is a Adapted, and its style colwise"),
        (_half_tied, "are one tensor, and the tensor-parallel plan cuts them in two ways"),
    ],
)
def test_a_model_that_would_be_cut_wrongly_is_refused(made: Callable[[], Any], words: str) -> None:
    """A style that was never tested, half a head, an adapter, half of a tie."""
    with pytest.raises(InputInvalid, match=words):
        huggingface.sharded(made(), Meshes.make(Layout(tp=4)), None)


def test_the_same_model_is_cut_where_nothing_is_wrong() -> None:
    """The sabotaged twin: tied, four heads of keys for four ranks, 50 words."""
    huggingface.sharded(_learning_activation(SUMMED), Meshes.make(Layout(tp=4)), None)
    model: Any = huggingface.sharded(_llama(), Meshes.make(Layout(tp=4)), None)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.model.layers[0].self_attn.q_proj.weight.to_local().shape == (8, 32)


def test_without_tensor_parallel_no_plan_is_needed() -> None:
    """Heads, styles and adapters matter only where matrices are cut."""
    for made in (_adapted(), _mixtral(), _llama(heads=(2, 1))):
        huggingface.sharded(made, Meshes.make(Layout(dp_shard=4)), None)


def test_attention_that_is_left_out_of_the_plan_may_have_any_heads() -> None:
    """The way out for models with fewer heads of keys than tp ranks."""
    model: Any = _llama(heads=(8, 1), whole_attention=True)
    huggingface.sharded(model, Meshes.make(Layout(tp=4)), None)
    assert model.model.layers[0].mlp.up_proj.weight.to_local().shape == (12, 32)
    assert model.model.layers[0].self_attn.k_proj.weight.to_local().shape == (4, 32)


def test_torch_s_own_clipping_does_not_take_what_lies_on_two_meshes() -> None:
    """The reason for `clip_grad_norm`; once torch does, it may go."""
    model: Any = huggingface.sharded(_llama(), Meshes.make(Layout(tp=4)), None)
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    with pytest.raises(RuntimeError, match="must have the same mesh"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
