"""Estimates how much memory one rank needs in a layout, before anything is allocated.

The estimate uses the model's shape alone. Parameters, slots and averages are exact (a test compares
them with what ranks hold); activations are what autograd saves in our model, to within 10 %.

Invariant: every figure is that of the rank that needs most of it.
"""

import math
from dataclasses import dataclass, fields

from examples.pretrain.config import DTYPES, ModelConfig, TrainConfig, micro_batch
from wattmesh.integrations.pytorch.pipeline import (
    STAGES_PER_RANK,
    layers_of,
    stage_count,
    stages_of,
)
from wattmesh.reconfig.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes, each figure that of the rank that needs most of it.

    Attributes:
        parameters: the rank's shards of the parameters; gradients take as much again.
        slots: optimizer state.
        average: the moving average of the parameters; 0 if none is kept.
        gathered: parameters that FSDP gathers for forward and backward.
        activations: saved between forward and backward, for all microbatches in flight.
    """

    parameters: int
    slots: int
    average: int
    gathered: int
    activations: int

    @property
    def state(self) -> int:
        """Bytes in a checkpoint."""
        return self.parameters + self.slots + self.average

    @property
    def total(self) -> int:
        """All of it and the gradients' shards, without allocator, communication and kernels."""
        return self.state + self.parameters + self.gathered + self.activations


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter's shape, and how many parts tp or ep make of it first, and then FSDP."""

    shape: tuple[int, ...]
    cut: int
    sharded: int
    dim: int = 0

    @property
    def whole(self) -> int:
        """Elements before FSDP shards it: what is gathered for use."""
        return math.prod(self.shape) // self.cut

    @property
    def shard(self) -> int:
        """Elements of the largest shard."""
        shape = list(self.shape)
        if self.cut > 1 and self.dim == 0:
            shape[0] //= self.cut
        length = math.ceil(shape[self.dim] / self.sharded)
        rest = math.prod(shape) // shape[self.dim]
        return length * rest // (self.cut if self.dim else 1)


def estimate(config: TrainConfig, layout: Layout) -> Memory:
    """Estimate what a rank of `layout` needs; `check_layout` must have accepted the layout."""
    ranks = [_of_rank(config, layout, rank) for rank in range(layout.pp)]
    names = [each.name for each in fields(Memory)]
    return Memory(**{name: max(getattr(each, name) for each in ranks) for name in names})


def stage_tensors(model: ModelConfig, layout: Layout, stage: int, stages: int) -> list[Tensor]:
    """List the parameters of a stage; row-cut matrices are listed by their cut dim first."""
    tp, fsdp = layout.tp, layout.dp_shard * layout.cp
    norm = Tensor((model.dim,), 1, fsdp)
    rest = [norm, norm]
    if model.experts:
        rest += _experts(model, layout)
    else:
        rest += [Tensor((model.hidden, model.dim), tp, fsdp)] * 2
        rest.append(_row(model.dim, model.hidden, tp, fsdp))
    found = []
    for number in layers_of(stage, stages, model.layers):
        found += _mixing(model, number, tp, fsdp) + rest
    if stage == 0:
        found.append(Tensor((model.vocab, model.dim), tp, fsdp))
    if stage == stages - 1:
        found += [norm, Tensor((model.vocab, model.dim), tp, fsdp)]
    return found


def _mixing(model: ModelConfig, number: int, tp: int, fsdp: int) -> list[Tensor]:
    """List the parameters of a layer's attention, or of the test-time training in its place."""
    heads, kv_heads = model.heads * model.head_dim, model.kv_heads * model.head_dim
    found = [Tensor((heads, model.dim), tp, fsdp), _row(model.dim, heads, tp, fsdp)]
    if number not in model.ttt_layers:
        return found + [Tensor((kv_heads, model.dim), tp, fsdp)] * 2
    found += [Tensor((heads, model.dim), tp, fsdp)] * 2
    rates, first = Tensor((model.heads, model.dim), tp, fsdp), (heads, model.head_dim)
    return [*found, rates, Tensor(first, tp, fsdp)]


def _row(out: int, inner: int, tp: int, fsdp: int) -> Tensor:
    """Describe a matrix (out, inner) that tp splits along inner and FSDP along out."""
    return Tensor((out, inner // tp), 1, fsdp)


def _experts(model: ModelConfig, layout: Layout) -> list[Tensor]:
    """List the router, and the experts, split over ep and then by width."""
    rest = layout.dp_shard * layout.cp * layout.tp // layout.ep
    wide = Tensor((model.experts, model.hidden, model.dim), layout.ep, rest, dim=1)
    down = Tensor((model.experts, model.dim, model.hidden), layout.ep, rest, dim=1)
    fsdp = layout.dp_shard * layout.cp
    router = [Tensor((model.experts, model.dim), 1, fsdp)]
    if model.noise_levels:
        router.append(Tensor((model.noise_levels + 1, model.experts), 1, fsdp))
    if model.bottleneck:
        router += [Tensor((model.dim // model.bottleneck, model.dim), 1, fsdp)] * 2
    return [*router, wide, wide, down]


def _of_rank(config: TrainConfig, layout: Layout, rank: int) -> Memory:
    size, stages = DTYPES[config.dtype].itemsize, stage_count(layout)
    numbers = stages_of(layout, rank)
    tensors = [
        each for stage in numbers for each in stage_tensors(config.model, layout, stage, stages)
    ]
    shards = size * sum(each.shard for each in tensors)
    gathered = size * sum(each.whole for each in tensors) if layout.world_size > 1 else 0
    chunks = in_flight(layout, rank, config.global_batch // layout.data_parallel, config)
    saved = chunks * max(
        sum(
            layer_activations(config, layout, each)
            for each in layers_of(stage, stages, config.model.layers)
        )
        for stage in numbers
    )
    if stages - 1 in numbers:
        saved += head_activations(config, layout) * min(chunks, layout.pp)
    return Memory(
        parameters=shards,
        slots=2 * shards,
        average=shards if config.ema_decay else 0,
        gathered=gathered,
        activations=saved,
    )


def in_flight(layout: Layout, rank: int, share: int, config: TrainConfig) -> int:
    """Return the largest number of (stage, microbatch) pairs with live activations on a rank.

    Args:
        layout: names the pipeline schedule.
        rank: along the pp axis.
        share: samples of this data-parallel rank per step.
        config: sets the microbatch size if the layout does not.
    """
    count = share // micro_batch(config, layout)
    if layout.pp == 1:
        return 1
    each = STAGES_PER_RANK[layout.schedule]
    peaks = {
        "GPipe": count,
        "1F1B": layout.pp - rank,
        # The warm-up (Narayanan et al. 2021, section 2.2), and the microbatch in progress.
        "Interleaved1F1B": 2 * (layout.pp - rank - 1) + (each - 1) * layout.pp + 1,
        # A rank further down has as many weight gradients left to do as it warms up less.
        "InterleavedZeroBubble": each * layout.pp,
        # As much as 1F1B's first rank (Qi et al. 2024, section 6), in half stages.
        "ZBVZeroBubble": each * layout.pp,
    }
    return min(peaks[layout.schedule], each * count)


def layer_activations(config: TrainConfig, layout: Layout, number: int) -> int:
    """Return the bytes that layer `number` saves for the backward pass of one microbatch."""
    model, size = config.model, DTYPES[config.dtype].itemsize
    tokens = micro_batch(config, layout) * model.seq_len // layout.cp
    stream = tokens * model.dim // layout.tp
    if layout.recompute:
        return size * stream
    # Inputs of both norms; then what mixes positions needs.
    attention = 2 * stream + tokens * model.dim + _mixing_activations(config, layout, number)
    if not model.experts:
        return size * (attention + tokens * model.dim + 4 * tokens * model.hidden // layout.tp)
    rows = tokens * model.experts_per_token // layout.tp
    return size * (attention + stream + rows * (3 * model.dim + 4 * model.hidden))


def _mixing_activations(config: TrainConfig, layout: Layout, number: int) -> int:
    """Count the elements that attention, or test-time training, saves behind the norm."""
    model, samples = config.model, micro_batch(config, layout)
    heads, kv_heads = model.heads * model.head_dim, model.kv_heads * model.head_dim
    tokens = samples * model.seq_len // layout.cp
    if number not in model.ttt_layers:
        # Queries, keys, values, the mix before and after its transpose.
        return tokens * (3 * heads + 2 * kv_heads) // layout.tp
    # Queries, keys, values, the answers; rates twice; the weights that each piece begins with.
    pieces = 2 if layout.cp > 1 else 1
    weights = pieces * samples * heads * model.head_dim
    return (tokens * (4 * heads + 2 * model.heads) + weights) // layout.tp


def head_activations(config: TrainConfig, layout: Layout) -> int:
    """Return the bytes that the last norm, the head and the loss save for one microbatch."""
    model, size = config.model, DTYPES[config.dtype].itemsize
    tokens = micro_batch(config, layout) * model.seq_len // layout.cp
    return size * tokens * (model.dim // layout.tp + model.dim + model.vocab)
