"""Bytes that one rank of a training job needs at its peak, for many configurations at once. Pure.

State as ZeRO deals it (1910.02054), activations counted tensor by tensor with flash attention and
sequence parallelism (2205.05198), microbatches in flight on the first stage of 1F1B (2104.04473),
logits, and what FSDP gathers. Constants marked "measured" were fitted on published peaks; the
benchmark `cost_model` says how well they hold.
"""

from dataclasses import dataclass, replace

import numpy as np

from wattmesh.policies.parallelism.model_shape import (
    Number,
    feed_forward_weights,
    matrices,
    moe_share,
)
from wattmesh.policies.parallelism.setups import (
    FULL,
    SELECTIVE,
    Setups,
    expert_rows,
    micro_batches,
    sharing_ranks,
)
from wattmesh.policies.parallelism.step_time import stage_parameters, tokens_of_rank

MASTER_BYTES = 12.0
"""Adam in fp32: a copy of the weight and two moments, of 4 bytes each."""

LOGIT_BYTES, LOGIT_BYTES_UNFUSED = 8.0, 16.0
"""Of each logit at the peak: where loss and softmax are one kernel (Megatron), and where they are
not (plain PyTorch, taken for every FSDP job)."""

EMBEDDING_BYTES = 4.6
"""More of each embedding parameter of a rank at the peak, of models without experts; measured.
Those with experts peak elsewhere: their published peaks leave no room for it."""

LAYER_INPUT_BYTES = 1.7
"""Of each hidden value of a microbatch that a rank has whole between matrices; measured."""

BASE_BYTES = 0.49 * 2**30
"""Whatever the size of the model; measured."""

KEPT_BY_SELECTIVE_FSDP = 0.57
"""Share of activations that torchtitan's selective recomputation keeps (every other product)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Bytes on the fullest rank, as PyTorch's allocator counts them at their peak.

    Attributes:
        state: weights, gradients, optimizer. `activations`: kept for backward passes.
        transient: logits, gathered parameters and buffers.
        total: all of it. What the driver and NCCL hold is not in it: some 1 to 4 GiB.
    """

    state: Number
    activations: Number
    transient: Number
    total: Number


def _state(setups: Setups, held: tuple[Number, Number]) -> Number:
    """Give the bytes of weights, gradients and optimizer state."""
    layout, zero = setups.layout, np.asarray(setups.layout.zero)
    gradient = np.where(zero == 3, 2.0, 4.0)
    trained = np.where(np.asarray(setups.work.frozen_base) > 0, 0.01, 1.0)
    total: Number = 0.0
    for count, owners in zip(held, sharing_ranks(layout), strict=True):
        weights = 2.0 / np.where(zero == 3, owners, 1.0)
        gradients = gradient / np.where(zero >= 2, owners, 1.0) * trained
        moments = MASTER_BYTES / np.where(zero >= 1, owners, 1.0) * trained
        total = total + np.asarray(count) * (weights + gradients + moments)
    return total


def _activations_of_layer(setups: Setups) -> Number:
    """Give the bytes that one layer keeps of one microbatch."""
    shape, layout, work = setups.shape, setups.layout, setups.work
    tokens, tp, hidden = np.asarray(tokens_of_rank(setups)), layout.tp, np.asarray(shape.hidden)
    dealt = np.where(np.asarray(work.sequence_parallel) > 0, tp, 1.0)
    again = np.asarray(layout.recompute)
    queries = np.asarray(shape.heads) * shape.head_width
    keys = np.asarray(shape.kv_heads) * shape.head_width
    width = np.asarray(feed_forward_weights(shape)) / matrices(shape) / hidden
    experts = np.asarray(moe_share(shape)) * shape.topk
    routed = experts * 4 * (np.asarray(shape.expert_ffn) + hidden) * expert_rows(setups.experts)
    inside = (4 * queries + 4 * keys + 4 * width + routed) / tp
    no_scores = (np.asarray(work.fused_attention) > 0) | (again == SELECTIVE)
    scores = np.asarray(shape.heads) / tp * np.where(no_scores, 4.0, 5.0 * work.seq_len)
    fsdp = np.asarray(layout.zero) == 3
    kept = np.where(fsdp & (again == SELECTIVE), KEPT_BY_SELECTIVE_FSDP, 1.0)
    everything = tokens * (8 * hidden / dealt + inside + scores) * kept
    return np.asarray(np.where(again == FULL, 2 * tokens * hidden / dealt, everything))


def _stage(
    setups: Setups, *, dense_layers: Number, in_flight: Number, output: Number
) -> PeakMemory:
    """Predict the peak of a rank of one stage.

    Args:
        setups: the configurations.
        dense_layers: layers of this stage that have no experts.
        in_flight: microbatches whose activations it keeps.
        output: 1 where it has the output layer, else 0.
    """
    layout, pp = setups.layout, np.asarray(setups.layout.pp)
    layers = np.asarray(setups.shape.layers) / pp
    own = replace(setups.shape, layers=layers, dense_layers=np.minimum(dense_layers, layers))
    stage = replace(setups, shape=own)
    fsdp, tokens = np.asarray(layout.zero) == 3, np.asarray(tokens_of_rank(setups))
    held = stage_parameters(stage, embeddings=np.where(pp > 1, 1.0, 2.0))
    state = np.asarray(_state(stage, held))
    activations = layers * in_flight * _activations_of_layer(stage)
    each = np.where(fsdp, LOGIT_BYTES_UNFUSED, LOGIT_BYTES)
    logits = output * each * tokens * own.vocab / layout.tp
    gathered = np.where(fsdp, 6 * np.add(*map(np.asarray, held)) / layers, 0.0)
    elsewhere = fsdp | (np.asarray(own.experts) > 0)
    embeddings = np.where(elsewhere, 0.0, EMBEDDING_BYTES) * own.vocab * own.hidden / layout.tp
    inputs = LAYER_INPUT_BYTES * tokens * own.hidden
    transient = logits + gathered + embeddings + inputs + BASE_BYTES
    total = state + activations + transient
    return PeakMemory(state=state, activations=activations, transient=transient, total=total)


def memory(setups: Setups) -> PeakMemory:
    """Predict the peak of the fullest rank: the first stage's, or the last one's."""
    shape, layout = setups.shape, setups.layout
    pp, chunks = np.asarray(layout.pp), np.maximum(layout.chunks, 1)
    interleaved = np.where(chunks > 1, 1 + (pp - 1) / (pp * chunks), 1.0)
    in_flight = np.minimum(micro_batches(setups), pp) * interleaved
    dense = np.asarray(shape.dense_layers)
    others = np.asarray(shape.layers) * (1 - 1 / pp)
    first = _stage(
        setups, dense_layers=dense, in_flight=in_flight, output=np.where(pp > 1, 0.0, 1.0)
    )
    last = _stage(
        setups, dense_layers=np.maximum(0, dense - others), in_flight=interleaved, output=1.0
    )
    fuller = np.asarray(first.total) >= last.total
    return PeakMemory(
        state=np.where(fuller, first.state, last.state),
        activations=np.where(fuller, first.activations, last.activations),
        transient=np.where(fuller, first.transient, last.transient),
        total=np.where(fuller, first.total, last.total),
    )
