"""The memory estimate against what autograd really saves, and against Llama 3 8B's real size.

What ranks hold of the state is compared to the byte in `test_equal_layouts.py`.
"""

from dataclasses import replace

import pytest
import torch

from examples.pretrain.config import TrainConfig, micro_batch, preset
from examples.pretrain.memory import estimate, in_flight, stage_tensors
from examples.pretrain.model import Where
from examples.pretrain.parallel import draw, make_stage, zero_buffers
from wattmesh.integrations.pytorch.context_parallel.context import Context
from wattmesh.integrations.pytorch.loss import token_loss
from wattmesh.reconfig.layout import Layout

LLAMA = preset("llama3-8b")
GIB = 1 << 30


def saved_bytes(config: TrainConfig) -> int:
    """Give the bytes that one microbatch's forward leaves for its backward, parameters apart."""
    model = make_stage(config, 0, 1).to_empty(device="cpu")
    zero_buffers(model)
    draw(model, config)
    context = Context.deal(config.model.seq_len, 1, 0, None)
    model.where = Where.make(config.model, context, context.positions_S, torch.float32)
    constant = (*model.parameters(), model.where.cos_SE, model.where.sin_SE)
    known = {each.untyped_storage().data_ptr() for each in constant}
    saved: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        at = tensor.untyped_storage().data_ptr()
        if at not in known:
            saved[at] = tensor
        return tensor

    samples = micro_batch(config, Layout())
    tokens = torch.zeros(samples, config.model.seq_len, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        token_loss(model(tokens, torch.arange(samples)), tokens, 1.0)
    return sum(each.untyped_storage().nbytes() for each in saved.values())


@pytest.mark.parametrize("name", ["demo", "bench", "tiny-ttt", "tiny-narrow"])
def test_activations_are_what_autograd_saves(name: str) -> None:
    """Dense, with experts and with test-time training, to within a tenth."""
    found = saved_bytes(preset(name))
    expected = estimate(preset(name), Layout()).activations
    assert found == pytest.approx(expected, rel=0.1)


def test_llama_has_the_size_it_is_known_for() -> None:
    """Built on the meta device: 8.03e9 parameters, counted alike from the shape alone."""
    built = sum(each.numel() for each in make_stage(LLAMA, 0, 1).parameters())
    counted = sum(each.whole for each in stage_tensors(LLAMA.model, Layout(), 0, 1))
    assert built == counted == 8_030_261_248


def test_more_ranks_need_less_each_and_recomputing_needs_less_still() -> None:
    """Llama 3 8B in fp32 does not fit one 80 GiB device, and fits 128 of them with room."""
    layout = Layout(dp_shard=8, tp=4, pp=4, micro_batch=1)
    alone, spread = estimate(LLAMA, Layout(micro_batch=1)), estimate(LLAMA, layout)
    again = estimate(LLAMA, replace(layout, recompute=True))
    assert alone.state > 80 * GIB > 40 * GIB > spread.total
    assert spread.state == again.state
    assert again.activations < spread.activations / 4


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        ("1F1B", 2),
        ("GPipe", 4),
        ("Interleaved1F1B", 5),
        ("InterleavedZeroBubble", 4),
        ("ZBVZeroBubble", 4),
    ],
)
def test_schedules_differ_in_how_many_microbatches_are_alive(schedule: str, chunks: int) -> None:
    """On the first of two ranks with four microbatches; the last holds fewer under 1F1B."""
    layout = Layout(pp=2, schedule=schedule, micro_batch=2)
    assert in_flight(layout, 0, 8, preset("tiny")) == chunks
    assert in_flight(layout, 1, 8, preset("tiny")) <= chunks
