"""Layouts of a model on two classes of GPUs at once. Pure.

Three ways are searched. Replicas by class: each class trains whole replicas with one common tp, pp
and cp, and takes so many microbatches of the batch that both end together. Stages by class: the
pipeline's first stages are of one class and its last ones of the other, with unequal numbers of
layers. In both, experts are dealt over the GPUs of one class, equally, as these are alike. Expert
groups over both classes: with equal counts, and with counts by speed (`expert_groups`). A step
takes as long as the slower class; who waits draws waiting watts.
Invariant: each class's part fits into its own memory, and all samples and layers are dealt.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.layout_search.compared_counts import (
    ComparedCounts,
    compare_counts,
    cost_groups,
)
from wattmesh.policies.layout_search.expert_groups import (
    DealtExperts,
    ExpertGroups,
    Pair,
    take_dealt,
    take_groups,
)
from wattmesh.policies.layout_search.gpu_parts import GpuPart, MixedJob, peak_share, waiting_w
from wattmesh.policies.layout_search.search import CLOCKS, megatron_like, undominated
from wattmesh.policies.layout_search.space import space
from wattmesh.policies.parallelism.energy import step_energy
from wattmesh.policies.parallelism.model_shape import ModelShape, moe_share
from wattmesh.policies.parallelism.predict import CostModel
from wattmesh.policies.parallelism.setups import FULL, NONE, SELECTIVE, LayoutColumns, Setups
from wattmesh.policies.parallelism.step_time import step_time
from wattmesh.policies.parallelism.training_rows import hardware_columns, take_layouts

Array: TypeAlias = NDArray[np.float64]

NEAR = np.arange(-6.0, 7.0)
"""Microbatches around the ideal share of the first class that are tried."""

COMMON = ("tp", "pp", "cp", "ep", "chunks", "zero", "micro_batch", "recompute")
STAGE_ZERO = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dealt:
    """Configurations of one way, one entry each.

    Attributes:
        layout: of each class. `layers`: of a stage of each class. `batches`: microbatches that a
            rank of each class trains in a step.
        experts: of the GPU of each class that holds most; None where no group spans both.
        by_speed: whether these are counts by speed.
    """

    by_stages: bool
    layout: tuple[LayoutColumns, LayoutColumns]
    layers: Pair
    batches: Pair
    experts: Pair | None = None
    by_speed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLayouts:
    """What was found, fastest first; arrays of shape (n,), pairs by class.

    Attributes:
        by_stages: 1 where stages are dealt by class, 0 where replicas are, or experts.
        layout: columns by class; in stages by class `pp` is of both together, and so are `dp`,
            `ep` and `gpus` where a group of experts spans both.
        layers, batches: of a stage, and microbatches of a rank, by class.
        experts: of the GPU of each class that holds most; 0 where no group spans both classes.
        by_speed: where these are counts by speed.
        memory_share: of the class that is fuller.
        fitting: how many fit into memory. `excluded`: how many were left out, by reason.
        compared: groups that span both classes, with equal counts and by speed; None where the
            model has no experts.
    """

    by_stages: NDArray[np.bool_]
    layout: tuple[LayoutColumns, LayoutColumns]
    layers: Pair
    batches: Pair
    experts: Pair
    by_speed: NDArray[np.bool_]
    clock: Array
    step_s: Array
    j_per_token: Array
    memory_share: Array
    fitting: int
    excluded: dict[str, int]
    compared: ComparedCounts | None


def search_mixed(job: MixedJob, model: CostModel) -> MixedLayouts:
    """Search all three ways, at all clocks, and keep what nothing beats.

    Clocks are relative to each class's own highest.
    """
    excluded: dict[str, int] = {}
    ways = [_replicas(job, model, excluded), _stages(job, excluded)]
    costs = [_costs(job, model, way, excluded) for way in ways]
    compared = None
    if np.asarray(moe_share(job.shape)) > 0:
        groups, both = cost_groups(job, model, excluded)
        compared = compare_counts(job, groups, both)
        for by_speed, (dealt, found) in enumerate(both):
            differs = np.flatnonzero((dealt.mean[0] != both[0][0].mean[0]) | (not by_speed))
            ways.append(_grouped(job, take_groups(groups, differs), take_dealt(dealt, differs),
                                 by_speed=bool(by_speed)))  # fmt: skip
            costs.append(
                (
                    found.step_s[:, differs].ravel(),
                    found.joules[:, differs].ravel(),
                    np.tile(found.memory_share[differs], len(CLOCKS)),
                )
            )
    return _front(job, ways, costs, excluded, compared)


def _front(
    job: MixedJob,
    ways: list[_Dealt],
    costs: list[tuple[Array, Array, Array]],
    excluded: dict[str, int],
    compared: ComparedCounts | None,
) -> MixedLayouts:
    """Keep what nothing beats of all ways together."""
    step_s, joules, share = (np.concatenate([each[at] for each in costs]) for at in range(3))
    counts = [len(way.batches[0]) for way in ways]
    usable = np.flatnonzero(np.isfinite(step_s))
    front = usable[undominated(step_s[usable], joules[usable], share[usable])]
    begins = np.cumsum([0, *counts[:-1]])
    which = np.concatenate(
        [
            np.tile(np.arange(count), len(CLOCKS)) + begin
            for count, begin in zip(counts, begins, strict=True)
        ]
    )[front]
    clock = np.concatenate([np.repeat(np.asarray(CLOCKS), count) for count in counts])[front]

    def both(pick: int, name: str) -> Array:
        columns = [getattr(way, name) or _none(way) for way in ways]
        found: Array = np.concatenate([each[pick] for each in columns])[which]
        return found

    return MixedLayouts(
        by_stages=np.repeat([way.by_stages for way in ways], counts)[which],
        layout=(_joined(ways, 0, which), _joined(ways, 1, which)),
        layers=(both(0, "layers"), both(1, "layers")),
        batches=(both(0, "batches"), both(1, "batches")),
        experts=(both(0, "experts"), both(1, "experts")),
        by_speed=np.repeat([way.by_speed for way in ways], counts)[which],
        clock=clock,
        step_s=step_s[front],
        j_per_token=joules[front] / (job.global_batch * job.seq_len),
        memory_share=share[front],
        fitting=len(usable) // len(CLOCKS),
        excluded=excluded,
        compared=compared,
    )


def _none(way: _Dealt) -> Pair:
    nothing = np.zeros(len(way.batches[0]))
    return nothing, nothing


def _grouped(job: MixedJob, groups: ExpertGroups, dealt: DealtExperts, *, by_speed: bool) -> _Dealt:
    layers = np.asarray(job.shape.layers) / np.asarray(groups.layout[0].pp)
    return _Dealt(
        by_stages=False,
        layout=groups.layout,
        layers=(layers, layers),
        batches=(groups.batches, groups.batches),
        experts=dealt.most,
        by_speed=by_speed,
    )


def _joined(ways: list[_Dealt], pick: int, which: NDArray[np.int64]) -> LayoutColumns:
    names = LayoutColumns.__slots__
    columns = {
        name: np.concatenate([np.asarray(getattr(way.layout[pick], name)) for way in ways])[which]
        for name in names
    }
    return LayoutColumns(**columns)


def _replicas(job: MixedJob, model: CostModel, excluded: dict[str, int]) -> _Dealt:
    """Deal replicas: layouts that both classes have, and whole microbatches for each."""
    # One sample each: what divides the batch is asked of both classes together.
    spaces = [
        space(replace(job.alone(part), global_batch=part.gpus * 1024)).layout for part in job.parts
    ]
    keys = [
        np.stack([np.asarray(getattr(layout, name)) for name in COMMON], axis=1)
        for layout in spaces
    ]
    _, code = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    code = code.reshape(-1)
    codes = code[: len(keys[0])], code[len(keys[0]) :]
    _, first, second = np.intersect1d(*codes, return_indices=True)
    reason = "replicas by class: tp * pp * cp divides the GPUs of both"
    excluded[reason] = len(keys[0]) + len(keys[1]) - 2 * len(first)
    layouts = take_layouts(spaces[0], first), take_layouts(spaces[1], second)
    ideal, samples = _ideal_batches(job, model, layouts)
    tried = np.maximum(1.0, np.round(ideal)[:, None] + NEAR[None, :])
    dp = np.asarray(layouts[0].dp)[:, None], np.asarray(layouts[1].dp)[:, None]
    other = (samples[:, None] - dp[0] * tried) / dp[1]
    pp = np.asarray(layouts[0].pp)[:, None]
    chunked = np.asarray(layouts[0].chunks)[:, None] > 1
    whole = (other >= 1) & (other == np.floor(other)) & (samples == np.floor(samples))[:, None]
    whole &= ~chunked | ((tried % pp == 0) & (other % pp == 0))
    at, which = np.nonzero(whole)
    excluded["replicas by class: whole microbatches for both"] = int((~whole.any(axis=1)).sum())
    chosen = take_layouts(layouts[0], at), take_layouts(layouts[1], at)
    layers = np.asarray(job.shape.layers) / np.asarray(chosen[0].pp)
    return _Dealt(
        by_stages=False,
        layout=chosen,
        layers=(layers, layers),
        batches=(tried[at, which], other[at, which]),
    )


def _ideal_batches(
    job: MixedJob, model: CostModel, layouts: tuple[LayoutColumns, LayoutColumns]
) -> tuple[Array, Array]:
    """Give the first class's microbatches at which both end together, and all microbatches."""
    once, each = zip(
        *(
            _affine(job, model, part, layout, np.asarray(job.shape.layers))
            for part, layout in zip(job.parts, layouts, strict=True)
        ),
        strict=True,
    )
    samples = job.global_batch / np.asarray(layouts[0].micro_batch)
    dp = np.asarray(layouts[0].dp), np.asarray(layouts[1].dp)
    rate = dp[0] / each[0] + dp[1] / each[1]
    ends = (samples + dp[0] * once[0] / each[0] + dp[1] * once[1] / each[1]) / rate
    return np.maximum(1.0, (ends - once[0]) / each[0]), samples


def _stages(job: MixedJob, excluded: dict[str, int]) -> _Dealt:
    """Deal stages: all ways to give each class's stages whole numbers of layers."""
    gpus = job.parts[0].gpus, job.parts[1].gpus
    layers = int(np.asarray(job.shape.layers))
    common = int(np.gcd(*gpus))
    sizes = [each for each in range(1, common + 1) if common % each == 0]
    degrees = [
        (tp, cp, size // (tp * cp), ep)
        for size in sizes
        for tp in (1, 2, 4, 8)
        for cp in (1, 2, 4, 8)
        if size % (tp * cp) == 0
        for ep in _experts_dealt(job.shape, size)
    ]
    others = np.meshgrid((1, 2, 4, 8), (NONE, SELECTIVE, FULL), np.arange(1, layers), indexing="ij")
    each = np.stack([column.ravel() for column in others], axis=1)
    crossed = np.repeat(np.array(degrees), len(each), axis=0), np.tile(each, (len(degrees), 1))
    tp, cp, dp, ep, micro_batch, again, first = np.concatenate(crossed, axis=1).astype(float).T
    stages = gpus[0] / (tp * cp * dp), gpus[1] / (tp * cp * dp)
    second = (layers - stages[0] * first) / stages[1]
    batches = job.global_batch / (dp * micro_batch)
    domain = min(part.gpu.domain for part in job.parts)
    asked = {
        "stages by class: layers are dealt whole": (second >= 1) & (second == np.floor(second)),
        "stages by class: microbatches divide the batch": batches == np.floor(batches),
        "stages by class: tp divides heads and stays in a domain": (tp <= domain)
        & (float(np.asarray(job.shape.heads)) % tp == 0),
        "stages by class: 2 * cp divides the sequence": (cp == 1) | (job.seq_len % (2 * cp) == 0),
    }
    kept = np.ones(len(tp), dtype=bool)
    for reason, keeps in asked.items():
        excluded[reason] = int((kept & ~keeps).sum())
        kept &= keeps
    columns = LayoutColumns(
        gpus=np.full(len(tp), float(sum(gpus))),
        tp=tp,
        pp=stages[0] + stages[1],
        dp=dp,
        cp=cp,
        ep=ep,
        chunks=np.ones(len(tp)),
        zero=np.where(dp * cp > 1, STAGE_ZERO, 0.0),
        micro_batch=micro_batch,
        recompute=again,
    )
    chosen = take_layouts(columns, np.flatnonzero(kept))
    both = batches[kept]
    return _Dealt(
        by_stages=True,
        layout=(chosen, chosen),
        layers=(first[kept], second[kept]),
        batches=(both, both),
    )


def _experts_dealt(shape: ModelShape, ranks: int) -> list[int]:
    """List the degrees over which experts of a stage can be dealt."""
    experts = int(np.asarray(shape.experts))
    most = min(experts, ranks)
    return [each for each in range(1, most + 1) if experts % each == 0 and ranks % each == 0] or [1]


def _setups(
    job: MixedJob, part: GpuPart, layout: LayoutColumns, layers: Array, batches: Array
) -> Setups:
    """Give one class's part as if all stages, or all replicas, were like its own."""
    work = megatron_like(job.alone(part))
    samples = np.asarray(layout.dp) * layout.micro_batch * batches
    all_layers = np.asarray(layers) * np.asarray(layout.pp)
    dense = np.asarray(job.shape.dense_layers) * all_layers / job.shape.layers
    return Setups(
        shape=replace(job.shape, layers=all_layers, dense_layers=dense),
        hardware=hardware_columns([part.gpu]),
        layout=layout,
        work=replace(work, global_batch=samples),
    )


def _affine(
    job: MixedJob, model: CostModel, part: GpuPart, layout: LayoutColumns, all_layers: Array
) -> tuple[Array, Array]:
    """Give a step's seconds that do not depend on microbatches, and those of each."""
    layers = all_layers / np.asarray(layout.pp)
    totals = [
        np.asarray(
            step_time(
                _setups(job, part, layout, layers, np.asarray(count)), model.parameters
            ).total_s
        )
        for count in (1.0, 2.0)
    ]
    each = totals[1] - totals[0]
    return totals[0] - each, each


def _costs(
    job: MixedJob, model: CostModel, way: _Dealt, excluded: dict[str, int]
) -> tuple[Array, Array, Array]:
    """Give seconds, joules of a step and the fuller class's share of its memory, at all clocks."""
    step_s, joules, share = [], [], np.zeros(len(way.batches[0]))
    setups = [
        _setups(job, part, layout, layers, batches)
        for part, layout, layers, batches in zip(
            job.parts, way.layout, way.layers, way.batches, strict=True
        )
    ]
    for part, each in zip(job.parts, setups, strict=True):
        share = np.maximum(share, peak_share(each, part))
    name = "stages" if way.by_stages else "replicas"
    excluded[f"{name} by class: fit into the memory of both"] = int((share > 1).sum())
    times = [step_time(each, model.parameters) for each in setups]
    for clock in CLOCKS:
        energies = [
            step_energy(each, time, model.shares, clock=clock)
            for each, time in zip(setups, times, strict=True)
        ]
        taken = [np.asarray(each.step_s) for each in energies]
        slowest = np.maximum(*taken)
        joules_of_both = np.zeros(len(slowest))
        for part, energy, own_s in zip(job.parts, energies, taken, strict=True):
            busy = np.asarray(energy.node_w) * own_s
            waiting = waiting_w(part.gpu, model.shares) * (slowest - own_s)
            joules_of_both += part.gpus * (busy + waiting)
        step_s.append(np.where(share > 1, np.inf, slowest))
        joules.append(joules_of_both)
    return np.concatenate(step_s), np.concatenate(joules), np.tile(share, len(CLOCKS))
