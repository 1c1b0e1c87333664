"""Configurations of training runs as columns: one entry of each array is one configuration. Pure.

Whatever is common to all of them may be a plain number; NumPy spreads it over the others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.parallelism.model_shape import ModelShape, Number

FULL, SELECTIVE, NONE = 2.0, 1.0, 0.0
"""What is computed again in the backward pass: whole layers, attention scores, nothing."""

BF16, FP8, FP4 = 0, 1, 2
"""Number formats of matrix products; fp16 counts as bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareColumns:
    """`hardware.GpuClass` in columns; `family` and `generation` are indices into its tuples."""

    family: NDArray[np.int64]
    generation: NDArray[np.int64]
    matmul_flops: Number
    memory_bytes: Number
    memory_bytes_per_s: Number
    link_bytes_per_s: Number
    domain: Number
    network_bytes_per_s: Number
    power_w: Number
    idle_w: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutColumns:
    """How a step is dealt over GPUs.

    Attributes:
        gpus: all of them; `tp * pp * cp * dp`.
        tp, pp, dp, cp: degrees. `ep`: over how many GPUs of one stage experts are dealt.
        chunks: of layers on each stage (interleaved 1F1B); 1: plain 1F1B.
        zero: 0 to 3, what data-parallel ranks deal among them: nothing, optimizer state, gradients
            too, parameters too (FSDP).
        micro_batch: samples that pass the model at once on one data-parallel rank.
        recompute: `FULL`, `SELECTIVE` or `NONE`.
    """

    gpus: Number
    tp: Number
    pp: Number
    dp: Number
    cp: Number
    ep: Number
    chunks: Number
    zero: Number
    micro_batch: Number
    recompute: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkColumns:
    """What a step trains, and by what software.

    Attributes:
        global_batch: samples of a step. `seq_len`: tokens of a sample.
        number_format: `BF16`, `FP8` or `FP4`, of matrix products.
        sequence_parallel: 1 where tensor-parallel ranks deal positions between matrices.
        fused_attention: 1 where scores never reach memory (FlashAttention).
        fused_passes: 1 where norms, activations and residuals are few kernels (Transformer Engine).
        frozen_base: 1 where only adapters are trained (LoRA).
        dropped_tokens: 1 where experts drop what exceeds their capacity, so that sizes are fixed.
        captured: share of a step's kernels that are started as CUDA graphs, below 1.
    """

    global_batch: Number
    seq_len: Number
    number_format: Number
    sequence_parallel: Number
    fused_attention: Number
    fused_passes: Number
    frozen_base: Number
    dropped_tokens: Number
    captured: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShare:
    """What a rank has of its group's experts, where its members are not alike.

    Attributes:
        held: experts that it holds, over an equal share of them.
        group_tokens: tokens of an average rank of the group, over its own.
        domains: of fast links, that the group spans at least.
    """

    held: Number = 1.0
    group_tokens: Number = 1.0
    domains: Number = 1.0


ALIKE = ExpertShare()
"""Of groups whose members hold and send the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setups:
    """All that a prediction needs. `experts`: of each rank's group, where members differ."""

    shape: ModelShape
    hardware: HardwareColumns
    layout: LayoutColumns
    work: WorkColumns
    experts: ExpertShare = ALIKE


def sharing_ranks(layout: LayoutColumns) -> tuple[Number, Number]:
    """Count the ranks that hold the same parameters, or deal them: of dense ones, of experts."""
    ranks = np.asarray(layout.dp) * layout.cp
    return ranks, np.maximum(1.0, ranks * layout.tp / np.maximum(layout.ep, 1))


def expert_rows(share: ExpertShare) -> Number:
    """Give the rows that a rank's experts compute, over those that its own tokens make."""
    return np.asarray(share.held) * share.group_tokens


def tokens_per_step(setups: Setups) -> Number:
    """Count the tokens of one step."""
    return np.asarray(setups.work.global_batch) * setups.work.seq_len


def micro_batches(setups: Setups) -> Number:
    """Count the microbatches of one data-parallel rank in a step, at least one."""
    each = np.asarray(setups.layout.dp) * setups.layout.micro_batch
    return np.ceil(np.maximum(1.0, setups.work.global_batch / each) - 1e-9)
