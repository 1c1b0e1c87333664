"""What counts by speed, and loads that lean, are worth on a group of GPUs: `experts bench`.

Rates and watts are the vendors', so everything here is modelled and nothing measured. Loss is no
part of it: `python -m benchmarks.experts` trains models for that.
"""

from collections.abc import Sequence
from typing import Any

from wattmesh.controller.cost_model.asked_search import clusters
from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.counts import balanced_counts
from wattmesh.policies.experts.layer_energy import ExpertGpu, layer_energy
from wattmesh.policies.experts.tilt import least_energy_loads, shift_gain_w

MOST_GPUS, MOST_CLASSES = 1024, 8
FLOP_PER_ROW = 1e9
"""Of an expert; it moves no share, only seconds."""


def bench_json(gpus: str, experts: int, load_cap: float) -> dict[str, Any]:
    """Model one layer of a group, by how its experts are dealt and loaded.

    Raises:
        InputInvalid: the GPUs are not understood, or there are more than experts.
    """
    group = _group(gpus)
    if len(group) > experts:
        raise InputInvalid(
            f"{len(group)} GPUs cannot share {experts} experts of a layer; give fewer GPUs, or the "
            "group that shares one layer's experts"
        )
    equal = [experts // len(group) + (at < experts % len(group)) for at in range(len(group))]
    by_speed = balanced_counts(experts, [each.tokens_per_s for each in group])
    leaning = least_energy_loads(group, by_speed, load_cap)
    kinds = {each.name.rpartition("-")[0]: each for each in group}
    gains = [
        {"from": dear, "to": cheap, "gain_w": _gain_w(group, kinds[cheap], kinds[dear])}
        for dear in kinds
        for cheap in kinds
        if dear != cheap
    ]
    base = layer_energy(group, equal).energy_j
    rows = [
        _row("equal counts", group, equal, base),
        _row("counts by speed", group, by_speed, base),
        _row(f"counts by speed, leaning up to {load_cap:g}", group, leaning, base),
    ]
    return {
        "gpus": gpus,
        "experts": experts,
        "modelled": True,
        "load_cap": load_cap,
        "counts_by_speed": _by_kind(group, by_speed),
        "rows": rows,
        "shift_gains": gains,
    }


def _group(text: str) -> tuple[ExpertGpu, ...]:
    parts = clusters(text, most=MOST_CLASSES)
    if sum(count for count, _ in parts) > MOST_GPUS:
        raise InputInvalid(f"--gpus {text!r:.60} has more than {MOST_GPUS} GPUs for one layer")
    return tuple(
        ExpertGpu(
            name=f"{gpu.name}-{at}",
            node=gpu.name,
            busy_w=gpu.power_w,
            idle_w=gpu.idle_w,
            tokens_per_s=gpu.matmul_flops / FLOP_PER_ROW,
        )
        for count, gpu in parts
        for at in range(count)
    )


def _gain_w(group: Sequence[ExpertGpu], cheap: ExpertGpu, dear: ExpertGpu) -> float:
    receivers = sum(each.node == cheap.node for each in group)
    return shift_gain_w(cheap, dear, group, receivers)


def _row(
    name: str, group: Sequence[ExpertGpu], loads: Sequence[float], base_j: float
) -> dict[str, Any]:
    found = layer_energy(group, loads)
    return {
        "case": name,
        "energy_over_equal": found.energy_j / base_j,
        "time_over_balanced": found.load_share_max,
        "loads": _by_kind(group, loads),
    }


def _by_kind(group: Sequence[ExpertGpu], values: Sequence[float]) -> dict[str, float]:
    """Give the mean of each kind of GPU."""
    found: dict[str, list[float]] = {}
    for gpu, value in zip(group, values, strict=True):
        found.setdefault(gpu.name.rpartition("-")[0], []).append(value)
    return {kind: sum(each) / len(each) for kind, each in found.items()}
