"""Bytes that a rank sends, and seconds they take, by dimension of a layout. Pure.

Volumes are those of ring algorithms (docs/cost-model.md): of `n` ranks each sends
`(n - 1) / n` of the whole for a gather or a scatter, twice that for an all-reduce.
"""

import numpy as np

from wattmesh.policies.parallelism.model_shape import Number
from wattmesh.policies.parallelism.parameters import Parameters
from wattmesh.policies.parallelism.setups import (
    FULL,
    HardwareColumns,
    Setups,
    expert_rows,
    sharing_ranks,
)


def part_sent(ranks: Number) -> Number:
    """Give the share of a whole that each of `ranks` sends in a ring."""
    return (np.asarray(ranks) - 1) / np.maximum(ranks, 1)


def link_rate(hardware: HardwareColumns, fitted: Parameters) -> Number:
    """Give the bytes per second and GPU inside a domain."""
    return np.asarray(hardware.link_bytes_per_s) * fitted.link


def network_rate(hardware: HardwareColumns, fitted: Parameters, sharing: Number = 1.0) -> Number:
    """Give the bytes per second of a ring that leaves the domain.

    Args:
        hardware: the GPUs.
        fitted: what their links reach.
        sharing: GPUs of one domain whose adapters the ring uses.
    """
    rate = np.asarray(hardware.network_bytes_per_s) * fitted.network * np.maximum(sharing, 1)
    return np.minimum(rate, link_rate(hardware, fitted))


def tensor_parallel_s(setups: Setups, tokens: Number, fitted: Parameters) -> Number:
    """Give the seconds of a layer and microbatch: gathers and scatters around both its parts."""
    layout, hardware, tp = setups.layout, setups.hardware, np.asarray(setups.layout.tp)
    again = np.where(np.asarray(layout.recompute) == FULL, 0.5, 0.0)
    volume = 8 * np.asarray(tokens) * setups.shape.hidden * part_sent(tp) * (2 + again)
    inside = tp <= np.asarray(hardware.domain)
    across = network_rate(hardware, fitted, np.minimum(tp, hardware.domain))
    rate = np.where(inside, link_rate(hardware, fitted), across)
    waiting = 8 * fitted.latency_s * np.log2(np.maximum(tp, 1))
    return np.where(tp > 1, volume / rate * fitted.tensor_exposed + waiting, 0.0)


def context_parallel_s(setups: Setups, tokens: Number, fitted: Parameters) -> Number:
    """Give the seconds of a layer and microbatch: keys and values pass all ranks, thrice."""
    shape, layout, hardware = setups.shape, setups.layout, setups.hardware
    keys = np.asarray(shape.kv_heads) * shape.head_width / layout.tp
    volume = 12 * np.asarray(tokens) * keys * (np.asarray(layout.cp) - 1)
    inside = np.asarray(layout.tp) * layout.cp <= np.asarray(hardware.domain)
    rate = np.where(inside, link_rate(hardware, fitted), network_rate(hardware, fitted))
    return np.asarray(volume / rate * fitted.context_exposed)


def expert_parallel_s(
    setups: Setups, tokens: Number, with_experts: Number, fitted: Parameters
) -> Number:
    """Give the seconds of a layer and microbatch: tokens go to experts and back, twice."""
    shape, layout, hardware = setups.shape, setups.layout, setups.hardware
    ep = np.asarray(layout.ep)
    # 2 bytes of each value, there and back, forward and backward.
    sent = 8 * np.asarray(tokens) / layout.tp * shape.topk * shape.hidden * part_sent(ep)
    # Links carry both ways at once, so the greater of what leaves and what arrives counts.
    sent = sent * np.maximum(1.0, expert_rows(setups.experts))
    domains = np.maximum(ep / np.asarray(hardware.domain), setups.experts.domains)
    inside_s = 1 / link_rate(hardware, fitted)
    # A token goes once to each domain that has one of its experts, and is copied inside it.
    other = (domains - 1) * (1 - (1 - 1 / domains) ** np.maximum(shape.topk, 1))
    outside = other / np.maximum(shape.topk, 1) / part_sent(np.maximum(ep, 2))
    seconds = sent * (inside_s + outside / network_rate(hardware, fitted))
    return np.asarray(with_experts * seconds * fitted.expert_exposed)


def stage_s(setups: Setups, tokens: Number, fitted: Parameters) -> Number:
    """Give the seconds of a microbatch: activations and their gradients go to the next stage."""
    layout = setups.layout
    volume = 4 * np.asarray(tokens) * setups.shape.hidden / layout.tp * layout.chunks
    seconds = volume / network_rate(setups.hardware, fitted) * fitted.stage_exposed
    return np.where(np.asarray(layout.pp) > 1, seconds, 0.0)


def data_parallel_rate(setups: Setups, fitted: Parameters) -> Number:
    """Give the bytes per second of the ring over data-parallel (and context-parallel) ranks."""
    layout, hardware = setups.layout, setups.hardware
    ranks = np.asarray(layout.dp) * layout.cp
    sharing = np.asarray(hardware.domain) / layout.tp
    inside = ranks * layout.tp <= np.asarray(hardware.domain)
    across = network_rate(hardware, fitted, sharing)
    return np.where(inside, link_rate(hardware, fitted), across)


def dealt_parameters(setups: Setups, dense: Number, experts: Number) -> tuple[Number, Number]:
    """Give the parameters that a rank's ring of data-parallel ranks passes on: dense, experts."""
    ranks, for_experts = sharing_ranks(setups.layout)
    return np.asarray(dense) * part_sent(ranks), np.asarray(experts) * part_sent(for_experts)
