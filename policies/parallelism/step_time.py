"""Seconds of one training step, for any number of configurations at once. Pure.

A microbatch passes a stage in the time of its products (rate by shape), of what is read and
written besides, and of the communication that computing does not hide. A step is the microbatches,
the filling of the pipeline (2104.04473), the gradients' reduction (1910.02054, 2304.11277) and the
optimizer. What cannot be known from data sheets is `parameters.Parameters`.
"""

from dataclasses import dataclass, replace

import numpy as np

from wattmesh.policies.parallelism import collectives
from wattmesh.policies.parallelism.model_shape import (
    Number,
    attention_weights,
    expert_weights,
    feed_forward_weights,
    matrices,
    moe_share,
    score_width,
)
from wattmesh.policies.parallelism.parameters import Parameters
from wattmesh.policies.parallelism.setups import (
    BF16,
    FP4,
    FP8,
    FULL,
    SELECTIVE,
    HardwareColumns,
    Setups,
    expert_rows,
    micro_batches,
)

SHARPNESS = 4.0
"""How suddenly the slower of two things that run at once decides: a power mean of this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step and of its phases, on an average rank.

    Attributes:
        total_s: all of it.
        products_s: matrix products and attention, `memory_s`: what reads and writes memory.
        exposed_s: communication that computing does not hide. `waiting_s`: bubbles and launches.
    """

    total_s: Number
    products_s: Number
    memory_s: Number
    exposed_s: Number
    waiting_s: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """One layer and microbatch of a rank, in seconds, there and back.

    Attributes:
        dense_products_s, dense_memory_s: of its own tokens. `expert_products_s`,
            `expert_memory_s`: of the rows that its experts get.
        exposed_s: communication that computing does not hide.
        launches_s: what starting the kernels takes at least, whatever they do.
    """

    dense_products_s: Number
    dense_memory_s: Number
    expert_products_s: Number
    expert_memory_s: Number
    exposed_s: Number
    launches_s: Number


def tokens_of_rank(setups: Setups) -> Number:
    """Count the tokens of a microbatch on one context-parallel rank."""
    each = np.asarray(setups.layout.micro_batch) * setups.work.seq_len
    return each / setups.layout.cp


def rank_parameters(setups: Setups) -> tuple[Number, Number]:
    """Count what one rank would hold if data-parallel ranks dealt nothing: dense, experts."""
    pp = np.asarray(setups.layout.pp)
    shape = setups.shape
    stage = replace(
        shape,
        layers=np.asarray(shape.layers) / pp,
        dense_layers=np.asarray(shape.dense_layers) / pp,
    )
    return stage_parameters(replace(setups, shape=stage), embeddings=np.where(pp > 1, 1.0, 2.0))


def stage_parameters(setups: Setups, *, embeddings: Number) -> tuple[Number, Number]:
    """Count the same of a stage.

    Args:
        setups: its shape has the layers of the stage only.
        embeddings: how many of the two tables, of input and output, the stage has.
    """
    shape, layout = setups.shape, setups.layout
    layers = np.asarray(shape.layers)
    layer = np.asarray(attention_weights(shape)) + feed_forward_weights(shape)
    tables = np.asarray(embeddings) * shape.vocab * shape.hidden
    dense = (layer * layers + tables) / layout.tp
    equal_share = np.asarray(expert_weights(shape)) * layers / np.maximum(1, layout.ep)
    return dense, equal_share * setups.experts.held


def _speedup(setups: Setups, fitted: Parameters) -> Number:
    """Give how many times faster products are in their number format than in bf16."""
    number_format = np.asarray(setups.work.number_format)
    return np.select(
        [number_format == FP8, number_format == FP4], [2 * fitted.fp8, 4 * fitted.fp4], 1.0
    )


def _narrowness(setups: Setups, fitted: Parameters) -> Number:
    """Give how many times longer products take than ones with many rows and columns."""
    few_rows = 1 + fitted.half_rows / np.asarray(tokens_of_rank(setups))
    short = np.asarray(setups.work.number_format) != BF16
    half_columns = np.where(short, fitted.half_columns_short, fitted.half_columns)
    return few_rows * (1 + half_columns * setups.layout.tp / setups.shape.hidden)


def matmul_rate(hardware: HardwareColumns, fitted: Parameters) -> Number:
    """Give the operations per second of large bf16 products."""
    reached = fitted.matmul[hardware.generation] * fitted.family[hardware.family]
    return np.asarray(hardware.matmul_flops * reached)


def _products(setups: Setups, fitted: Parameters) -> tuple[Number, Number, Number]:
    """Give the forward seconds of a layer's plain products, experts' products and attention."""
    shape, hardware, tp = setups.shape, setups.hardware, np.asarray(setups.layout.tp)
    tokens = np.asarray(tokens_of_rank(setups))
    rate = matmul_rate(hardware, fitted) * _speedup(setups, fitted)
    weights = np.asarray(attention_weights(shape)) + feed_forward_weights(shape)
    plain = 2 * tokens * weights / tp / rate * _narrowness(setups, fitted)
    experts = np.maximum(shape.experts, 1)
    rows = tokens / tp * np.maximum(shape.topk, 1) * setups.layout.ep / experts
    rows = rows * setups.experts.group_tokens
    used = np.asarray(expert_weights(shape)) * shape.topk / experts
    grouped_rate = rate * fitted.grouped[hardware.generation]
    width = np.maximum(np.asarray(shape.expert_ffn), 1)
    narrow = (1 + fitted.half_expert_rows / rows) * (1 + fitted.half_expert_columns / width)
    grouped = 2 * tokens * used / tp / grouped_rate * narrow * expert_rows(setups.experts)
    near = np.minimum(1, 2 * np.asarray(shape.window) / setups.work.seq_len)
    seen = np.where(np.asarray(shape.window) > 0, 0.5 + 0.5 * near, 1.0)
    scores = 2 * tokens * setups.work.seq_len * score_width(shape) * seen / tp
    attention = scores / (hardware.matmul_flops * fitted.attention[hardware.generation])
    return plain, grouped, attention


def _passes(setups: Setups, fitted: Parameters) -> tuple[Number, Number, Number]:
    """Give the forward seconds of a layer's reads and writes: own tokens', experts', scores'."""
    shape, layout, work = setups.shape, setups.layout, setups.work
    tokens, tp = np.asarray(tokens_of_rank(setups)), np.asarray(layout.tp)
    hidden, with_experts = np.asarray(shape.hidden), np.asarray(moe_share(shape))
    # Without sequence parallelism every rank has all positions between matrices.
    whole = np.where(np.asarray(work.sequence_parallel) > 0, 0.0, 0.4)
    each = fitted.passes * np.where(np.asarray(work.fused_passes) > 0, 1.0, fitted.unfused)
    norms = each * hidden * (whole + (1 - whole) / tp)
    dense = np.asarray(feed_forward_weights(shape)) / matrices(shape) / hidden
    width = with_experts * np.asarray(shape.topk) * shape.expert_ffn
    cast = fitted.cast_passes * (np.asarray(work.number_format) != BF16)
    # Half of permuting orders a rank's own tokens, half the rows that arrive.
    permuted = with_experts * fitted.permute_passes * np.asarray(shape.topk) * hidden / 2
    own = norms + (cast * (hidden + dense) + permuted + 3 * dense) / tp
    arrived = (cast * width + permuted + 3 * width) / tp * expert_rows(setups.experts)
    scores = np.where(
        np.asarray(work.fused_attention) > 0, 0.0, 4 * np.asarray(work.seq_len) * shape.heads / tp
    )
    per_value = 2 * tokens / setups.hardware.memory_bytes_per_s
    return own * per_value, arrived * per_value, scores * per_value


def layer_time(setups: Setups, fitted: Parameters) -> LayerTime:
    """Take a layer apart: forward, backward (twice the products) and what is computed again."""
    work, layout = setups.work, setups.layout
    plain, grouped, attention = map(np.asarray, _products(setups, fitted))
    passes, arrived, scores = map(np.asarray, _passes(setups, fitted))
    again = np.asarray(layout.recompute)
    whole = np.where(again == FULL, 1.0, 0.0)
    gradients = np.where(np.asarray(work.frozen_base) > 0, 1.0, 2.0)
    selective = np.where(again == SELECTIVE, scores, 0.0)
    tokens = tokens_of_rank(setups)
    with_experts = np.asarray(moe_share(setups.shape))
    exposed = (
        np.asarray(collectives.tensor_parallel_s(setups, tokens, fitted))
        + collectives.context_parallel_s(setups, tokens, fitted)
        + collectives.expert_parallel_s(setups, tokens, with_experts, fitted)
    )
    alone = 1 - np.asarray(work.captured)
    # Without a capacity the host waits to hear how many tokens each expert got.
    counted = with_experts * (1 - np.asarray(work.dropped_tokens))
    launches = alone * fitted.launch_s * (1 + counted * fitted.expert_launches) * (3 + whole)
    return LayerTime(
        dense_products_s=plain * (1 + gradients + whole) + attention * (3.5 + whole),
        dense_memory_s=(passes + scores) * (2.6 + whole) + selective,
        expert_products_s=grouped * (1 + gradients + whole),
        expert_memory_s=arrived * (2.6 + whole),
        exposed_s=exposed,
        launches_s=launches,
    )


def _slower(one: Number, other: Number, sharpness: float = SHARPNESS) -> Number:
    """Give about the greater of two times; a little more where they are near each other."""
    powers = np.asarray(one) ** sharpness + np.asarray(other) ** sharpness
    return powers ** (1 / sharpness)


def _head_s(setups: Setups, fitted: Parameters) -> tuple[Number, Number]:
    """Give the seconds of a microbatch's output layer and loss: products, reads and writes."""
    shape, hardware, tp = setups.shape, setups.hardware, np.asarray(setups.layout.tp)
    tokens = np.asarray(tokens_of_rank(setups))
    rate = matmul_rate(hardware, fitted)
    parts = np.where(np.asarray(setups.work.frozen_base) > 0, 4.0, 6.0)
    products = parts * tokens * shape.hidden * shape.vocab / tp / rate * _narrowness(setups, fitted)
    return products, 12 * tokens * shape.vocab / tp / hardware.memory_bytes_per_s


def _reduction_s(setups: Setups, stage: Number, fitted: Parameters) -> tuple[Number, Number]:
    """Give the seconds of data-parallel communication that are seen.

    Returns:
        In each microbatch, which only FSDP has; and once in a step, which the others have.
    """
    layout = setups.layout
    dense, experts = rank_parameters(setups)
    sent = np.add(*collectives.dealt_parameters(setups, dense, experts))
    sent = sent * np.where(np.asarray(setups.work.frozen_base) > 0, 0.01, 1.0)
    rate = collectives.data_parallel_rate(setups, fitted)
    zero = np.asarray(layout.zero)
    # FSDP gathers 2-byte weights twice and scatters 2-byte gradients; others keep gradients of 4
    # bytes and gather weights of 2; without ZeRO 2-byte gradients are reduced to all.
    gathered = np.where(zero == 3, 6 * sent / rate, 0.0)
    once = np.select([zero == 3, zero == 0], [0.0, 4 * sent / rate], 6 * sent / rate)
    ranks = np.asarray(layout.dp) * layout.cp
    once = once + np.where(zero == 3, 0, 2 * fitted.latency_s * np.log2(np.maximum(ranks, 1)))
    hidden = np.where(zero == 0, 0, fitted.reduction_hidden) * stage
    return gathered, np.maximum(once - hidden, fitted.reduction_tail * once)


def step_time(setups: Setups, fitted: Parameters, *, layer_waiting_s: Number = 0.0) -> StepTime:
    """Predict the seconds of a step.

    Args:
        setups: the configurations.
        fitted: what was fitted.
        layer_waiting_s: for how long a rank waits, in each layer and microbatch, for slower
            members of its group of experts.

    Returns:
        Arrays with one entry per configuration, all finite and positive where the setups' are.
    """
    layout, pp = setups.layout, np.asarray(setups.layout.pp)
    layer = layer_time(setups, fitted)
    layer_products = np.asarray(layer.dense_products_s) + layer.expert_products_s
    layer_memory = np.asarray(layer.dense_memory_s) + layer.expert_memory_s
    busy = layer_products + layer_memory + layer.exposed_s
    layers = np.asarray(setups.shape.layers) / pp
    head_products, head_memory = map(np.asarray, _head_s(setups, fitted))
    head = head_products + head_memory
    stage = layers * _slower(busy + layer_waiting_s, layer.launches_s)
    longest = stage + np.where(pp > 1, fitted.head, 1.0) * head
    gathered, once = map(np.asarray, _reduction_s(setups, stage, fitted))
    fsdp = np.asarray(layout.zero) == 3
    micro_batch = np.where(
        fsdp, _slower(longest, gathered, 6.0) + fitted.gather_overhead * gathered, longest
    )
    sends = np.asarray(collectives.stage_s(setups, tokens_of_rank(setups), fitted))
    count = np.asarray(micro_batches(setups))
    filling = (pp - 1) / np.maximum(layout.chunks, 1) * (stage + head / pp + sends)
    dense, experts = rank_parameters(setups)
    owners = np.where(np.asarray(layout.zero) > 0, np.asarray(layout.dp) * layout.cp, 1.0)
    trained = np.where(np.asarray(setups.work.frozen_base) > 0, 0.01, 1.0)
    held = (np.asarray(dense) + experts) / owners * trained
    update = fitted.optimizer_bytes * held / setups.hardware.memory_bytes_per_s
    nodes = np.maximum(1.0, np.asarray(layout.gpus) / 8)
    slowed = 1 + fitted.straggling * np.log2(nodes)
    total = (count * (micro_batch + sends) + filling + once + update) * slowed + fitted.step_s
    products = count * (layers * layer_products + head_products / pp)
    memory = count * (layers * layer_memory + head_memory / pp) + update
    unhidden = np.where(fsdp, np.maximum(micro_batch - longest, 0), 0.0)
    exposed = count * (layers * layer.exposed_s + unhidden + sends) + once
    waiting = np.maximum(total - products - memory - exposed, 0.0)
    return StepTime(
        total_s=total,
        products_s=products,
        memory_s=memory,
        exposed_s=exposed,
        waiting_s=waiting,
    )
