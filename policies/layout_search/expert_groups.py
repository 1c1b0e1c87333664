"""Groups of experts that span two classes of GPUs: equal counts, and counts by speed. Pure.

Every group has both classes' shares of the job. A layer waits twice for its slowest member: before
tokens leave for their experts, and before they return. With equal counts the slow class is late
each time; with counts by speed both end their experts at about the same time. Samples of a
microbatch are tried by class as well, or dense layers would wait in their turn.
Invariant: counts of a group sum to the experts of a layer, and no GPU holds more than fit beside
the rest of its memory.

Shape suffixes: none; arrays have one entry for each configuration, and pairs are by class.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.layout_search.gpu_parts import MixedJob, peak_share, waiting_w
from wattmesh.policies.layout_search.search import CLOCKS, megatron_like
from wattmesh.policies.parallelism.energy import step_energy
from wattmesh.policies.parallelism.predict import CostModel
from wattmesh.policies.parallelism.setups import (
    FULL,
    NONE,
    SELECTIVE,
    ExpertShare,
    HardwareColumns,
    LayoutColumns,
    Setups,
)
from wattmesh.policies.parallelism.step_time import LayerTime, layer_time, step_time
from wattmesh.policies.parallelism.training_rows import hardware_columns, take_layouts

Array: TypeAlias = NDArray[np.float64]
Pair: TypeAlias = tuple[Array, Array]

DEGREES = (1.0, 2.0, 4.0, 8.0)
MICRO_BATCHES = (1.0, 2.0, 4.0, 8.0)
"""Samples of a microbatch that are tried for each class."""

NEARBY = (-2.0, -1.0, 1.0, 2.0)
"""Experts of a GPU of the first class, from where both classes end together, that are tried too."""

WAY = "expert groups over both classes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroups:
    """Configurations whose groups of experts span both classes.

    Attributes:
        layout: by class; `gpus`, `dp` and `ep` are of both together.
        members: of a group, by class.
        batches: microbatches of a step.
    """

    layout: tuple[LayoutColumns, LayoutColumns]
    members: Pair
    batches: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtExperts:
    """How many experts of a layer each GPU of a group holds.

    Attributes:
        most: of the GPU of a class that holds most, `mean`: of an average one; by class.
        fits: where all members have memory for theirs.
    """

    most: Pair
    mean: Pair
    fits: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCosts:
    """What configurations cost, one row for each of `CLOCKS`; infinite seconds: does not fit.

    Attributes:
        joules: of a step and all GPUs, those that wait included.
        memory_share: of the GPU that is fullest, shape (n,).
    """

    step_s: Array
    joules: Array
    memory_share: Array


def expert_groups(job: MixedJob, excluded: dict[str, int]) -> ExpertGroups:
    """List the configurations; `excluded` is told how many were left out, by reason."""
    shape, parts = job.shape, job.parts
    gpus = parts[0].gpus, parts[1].gpus
    experts, heads = float(np.asarray(shape.experts)), float(np.asarray(shape.heads))
    kv_heads, layers = float(np.asarray(shape.kv_heads)), float(np.asarray(shape.layers))
    common = int(np.gcd(*gpus))
    stages = [each for each in range(1, common + 1) if common % each == 0 and layers % each == 0]
    # A group is so many times the smallest with the classes' own shares of it.
    dealt = [
        each * sum(gpus) / common
        for each in range(1, common + 1)
        if common % each == 0 and each * sum(gpus) / common <= experts
    ]
    columns = _crossed(stages, dealt, DEGREES, DEGREES, MICRO_BATCHES, MICRO_BATCHES, range(4))
    pp, ep, tp, cp, first, second, zero = columns
    stage = gpus[0] / pp, gpus[1] / pp
    dp = stage[0] / (tp * cp), stage[1] / (tp * cp)
    members = ep * gpus[0] / sum(gpus), ep * gpus[1] / sum(gpus)
    batches = job.global_batch / (dp[0] * first + dp[1] * second)
    domain = min(part.gpu.domain for part in parts)
    rules: tuple[tuple[str, NDArray[np.bool_]], ...] = (
        ("tp * cp divides a stage of both", _whole(dp[0]) & _whole(dp[1])),
        (
            "tp divides heads and stays in a domain",
            (tp <= domain) & (heads % tp == 0) & ((kv_heads % tp == 0) | (tp % kv_heads == 0)),
        ),
        ("2 * cp divides the sequence", (cp == 1) | (job.seq_len % (2 * cp) == 0)),
        (
            "groups have whole tensor-parallel ranks, and divide a stage",
            (members[0] % tp == 0) & (members[1] % tp == 0) & (stage[0] % members[0] == 0),
        ),
        ("FSDP (zero 3) goes without a pipeline", (zero < 3) | (pp == 1)),
        ("microbatches divide the batch", _whole(batches) & (batches >= 1)),
    )
    kept = np.ones(len(pp), dtype=bool)
    for reason, keeps in rules:
        excluded[f"{WAY}: {reason}"] = int((kept & ~keeps).sum())
        kept &= keeps
    again = np.tile((NONE, SELECTIVE, FULL), int(kept.sum()))
    at = np.repeat(np.flatnonzero(kept), 3)
    layout = LayoutColumns(
        gpus=np.full(len(at), float(sum(gpus))),
        tp=tp[at],
        pp=pp[at],
        dp=(dp[0] + dp[1])[at],
        cp=cp[at],
        ep=ep[at],
        chunks=np.ones(len(at)),
        zero=zero[at],
        micro_batch=first[at],
        recompute=again,
    )
    return ExpertGroups(
        layout=(layout, replace(layout, micro_batch=second[at])),
        members=(members[0][at], members[1][at]),
        batches=batches[at],
    )


def equal_counts(job: MixedJob, groups: ExpertGroups) -> DealtExperts:
    """Deal every GPU the same number of experts, or one more to the first ones, as trainers do."""
    experts, ep = float(np.asarray(job.shape.experts)), np.asarray(groups.layout[0].ep)
    each, room = np.floor(experts / ep), _room(job, groups)
    rest = experts - each * ep
    extra = np.minimum(rest, groups.members[0]), np.maximum(0.0, rest - groups.members[0])
    most = each + (extra[0] > 0), each + (extra[1] > 0)
    return DealtExperts(
        most=most,
        mean=(each + extra[0] / groups.members[0], each + extra[1] / groups.members[1]),
        fits=(most[0] <= room[0]) & (most[1] <= room[1]),
    )


def counts_by_speed(job: MixedJob, groups: ExpertGroups, model: CostModel) -> DealtExperts:
    """Deal experts so that a step ends as early as whole counts and memory allow.

    Where both classes end their experts together is found first. Rows that arrive, gradients and
    optimizer weigh on the class that holds more, so counts nearby are tried on the whole step, and
    equal ones, than which the answer is never slower.
    """
    experts = float(np.asarray(job.shape.experts))
    one = np.ones(len(groups.batches))
    first_s, second_s = (
        np.broadcast_to(np.asarray(each.expert_products_s) + each.expert_memory_s, one.shape)
        for each in (
            layer_time(setups, model.parameters) for setups in _setups(job, groups, (one, one))
        )
    )
    room = _room(job, groups)
    best = dealt_to_two(experts, groups.members, (first_s, second_s), room)
    middle, best_s = best.most[0], _step_of(job, groups, best, model)
    nearby = [_with_first(experts, groups.members, middle + each, room) for each in NEARBY]
    for tried in (*nearby, equal_counts(job, groups)):
        step_s = _step_of(job, groups, tried, model)
        better = step_s < best_s
        best_s = np.where(better, step_s, best_s)
        best = _either(better, tried, best)
    return best


def dealt_to_two(experts: float, members: Pair, seconds: Pair, room: Pair) -> DealtExperts:
    """Deal experts of many groups at once, each of two classes: none could end its experts earlier.

    The more experts a GPU of the first class holds, the later it ends, and the earlier those of the
    second, who have what is left. So the best is on one of both sides of where they meet.

    Args:
        experts: of a layer.
        members: of a group, by class; at least 1.
        seconds: of one expert on a GPU, by class; above 0.
        room: experts that a GPU has memory for, by class; below 0 where not even the rest fits.
    """

    def ends(first: Array) -> Pair:
        left = experts - np.minimum(experts, first * members[0])
        return first * seconds[0], np.ceil(left / members[1]) * seconds[1]

    def earlier(first: Array) -> NDArray[np.bool_]:
        one, other = ends(first)
        return np.asarray(one < other)

    low, high = _reach(experts, members, room)
    meet = _greatest(earlier, float(high.max(initial=0.0)), len(high))
    before, after = (np.clip(each, low, high) for each in (meet, meet + 1))
    nearer = np.maximum(*ends(before)) <= np.maximum(*ends(after))
    return _with_first(experts, members, np.where(nearer, before, after), room)


def _reach(experts: float, members: Pair, room: Pair) -> Pair:
    """Give the least and the most experts that a GPU of the first class can hold."""
    low = np.ceil((experts - np.maximum(room[1], 0.0) * members[1]) / members[0])
    return np.maximum(0.0, low), np.minimum(room[0], np.ceil(experts / members[0]))


def _with_first(experts: float, members: Pair, first: Array, room: Pair) -> DealtExperts:
    """Deal so many to each GPU of the first class, and the rest evenly to the second."""
    low, high = _reach(experts, members, room)
    total = np.clip(first * members[0], 0.0, experts)
    mean = total / members[0], (experts - total) / members[1]
    fits = (low <= first) & (first <= high) & (room[0] >= 0) & (room[1] >= 0)
    return DealtExperts(most=(np.ceil(mean[0]), np.ceil(mean[1])), mean=mean, fits=fits)


def _either(which: NDArray[np.bool_], one: DealtExperts, other: DealtExperts) -> DealtExperts:
    def pair(name: str) -> Pair:
        ones, others = getattr(one, name), getattr(other, name)
        return np.where(which, ones[0], others[0]), np.where(which, ones[1], others[1])

    fits = np.where(which, one.fits, other.fits)
    return DealtExperts(most=pair("most"), mean=pair("mean"), fits=fits)


def group_costs(
    job: MixedJob, groups: ExpertGroups, dealt: DealtExperts, model: CostModel
) -> GroupCosts:
    """Predict seconds, joules and memory.

    A step takes as long as the GPUs with most experts; joules are those of GPUs with an average
    number, and of what they wait.
    """
    fullest, average = _setups(job, groups, dealt.most), _setups(job, groups, dealt.mean)
    first, second = (peak_share(each, part) for each, part in zip(fullest, job.parts, strict=True))
    share = np.maximum(first, second)
    late = [layer_time(each, model.parameters) for each in fullest]
    usual = [layer_time(each, model.parameters) for each in average]
    step_s, joules = [], []
    for clock in CLOCKS:
        layer_s = _slowest_layer_s(late, clock)
        slowest = _slowest_s(fullest, late, model, clock)
        taken = np.zeros(len(slowest))
        for part, setups, layer in zip(job.parts, average, usual, strict=True):
            waits_s = np.maximum(layer_s - _layer_s(layer, clock), 0.0)
            time = step_time(setups, model.parameters, layer_waiting_s=waits_s)
            energy = step_energy(setups, time, model.shares, clock=clock)
            own_s = np.minimum(np.asarray(energy.step_s), slowest)
            waiting_j = waiting_w(part.gpu, model.shares) * (slowest - own_s)
            taken += part.gpus * (np.asarray(energy.node_w) * own_s + waiting_j)
        step_s.append(np.where(dealt.fits & (share <= 1), slowest, np.inf))
        joules.append(taken)
    return GroupCosts(step_s=np.stack(step_s), joules=np.stack(joules), memory_share=share)


def _step_of(job: MixedJob, groups: ExpertGroups, dealt: DealtExperts, model: CostModel) -> Array:
    """Predict seconds of a step at full clock; infinite where it does not fit."""
    fullest = _setups(job, groups, dealt.most)
    late = [layer_time(each, model.parameters) for each in fullest]
    return np.where(dealt.fits, _slowest_s(fullest, late, model, CLOCKS[0]), np.inf)


def _slowest_s(
    setups: Sequence[Setups], layers: Sequence[LayerTime], model: CostModel, clock: float
) -> Array:
    """Predict seconds of the slower class, which in every layer waits for the other one, too."""
    layer_s = _slowest_layer_s(layers, clock)
    times = [
        step_time(each, model.parameters, layer_waiting_s=layer_s - _layer_s(own, clock))
        for each, own in zip(setups, layers, strict=True)
    ]
    first, second = (
        np.asarray(step_energy(each, time, model.shares, clock=clock).step_s)
        for each, time in zip(setups, times, strict=True)
    )
    slowest_s: Array = np.maximum(first, second)
    return slowest_s


def rows_of_gpu(job: MixedJob, groups: ExpertGroups, counts: Pair) -> Pair:
    """Give the capacity that counts ask for: rows of a layer and microbatch, with even loads."""
    group = sum(
        members * np.asarray(layout.micro_batch) * job.seq_len / (layout.cp * np.asarray(layout.tp))
        for members, layout in zip(groups.members, groups.layout, strict=True)
    )
    rows = np.asarray(group) * job.shape.topk / job.shape.experts
    return counts[0] * rows, counts[1] * rows


def take_groups(groups: ExpertGroups, which: NDArray[np.int64]) -> ExpertGroups:
    """Choose configurations."""
    layout = groups.layout
    return ExpertGroups(
        layout=(take_layouts(layout[0], which), take_layouts(layout[1], which)),
        members=(groups.members[0][which], groups.members[1][which]),
        batches=groups.batches[which],
    )


def take_dealt(dealt: DealtExperts, which: NDArray[np.int64]) -> DealtExperts:
    """Choose configurations."""
    return DealtExperts(
        most=(dealt.most[0][which], dealt.most[1][which]),
        mean=(dealt.mean[0][which], dealt.mean[1][which]),
        fits=dealt.fits[which],
    )


def _crossed(*values: Sequence[float]) -> list[Array]:
    grid = np.meshgrid(*(np.asarray(each, dtype=np.float64) for each in values), indexing="ij")
    return [each.ravel() for each in grid]


def _whole(number: Array) -> NDArray[np.bool_]:
    return np.asarray(number == np.floor(number))


def _setups(job: MixedJob, groups: ExpertGroups, counts: Pair) -> tuple[Setups, Setups]:
    """Give each class's part as if the whole job were of it, but for links and experts."""
    first, second = groups.layout
    tokens = [np.asarray(each.micro_batch) for each in groups.layout]
    mean = (groups.members[0] * tokens[0] + groups.members[1] * tokens[1]) / first.ep
    domains = sum(
        np.ceil(members / part.gpu.domain)
        for members, part in zip(groups.members, job.parts, strict=True)
    )
    found = []
    for at, layout in enumerate((first, second)):
        work = megatron_like(job.alone(job.parts[at]))
        samples = np.asarray(layout.dp) * tokens[at] * groups.batches
        found.append(
            Setups(
                shape=job.shape,
                hardware=_hardware(job, groups, at),
                layout=layout,
                work=replace(work, global_batch=samples),
                experts=ExpertShare(
                    held=counts[at] * np.asarray(layout.ep) / job.shape.experts,
                    group_tokens=mean / tokens[at],
                    domains=domains,
                ),
            )
        )
    return found[0], found[1]


def _hardware(job: MixedJob, groups: ExpertGroups, at: int) -> HardwareColumns:
    """Give one class's GPUs on the links of both: what spans two classes leaves every domain."""
    columns = hardware_columns([job.parts[at].gpu])
    classes = [part.gpu for part in job.parts]
    smaller = min(part.gpus for part in job.parts) / np.asarray(groups.layout[at].pp)
    return replace(
        columns,
        domain=np.minimum(smaller, min(each.domain for each in classes)),
        link_bytes_per_s=min(each.link_bytes_per_s for each in classes),
        network_bytes_per_s=min(each.network_bytes_per_s for each in classes),
    )


def _room(job: MixedJob, groups: ExpertGroups) -> Pair:
    """Count the experts that a GPU has memory for, by class; -1 where not even the rest fits."""
    experts = float(np.asarray(job.shape.experts))

    def most(at: int) -> Array:
        def fits(count: Array) -> NDArray[np.bool_]:
            return peak_share(_setups(job, groups, (count, count))[at], job.parts[at]) <= 1

        return _greatest(fits, experts, len(groups.batches))

    return most(0), most(1)


def _greatest(fits: Callable[[Array], NDArray[np.bool_]], most: float, size: int) -> Array:
    """Find the greatest whole numbers that fit, if what is less than one that fits does too."""
    low, high = np.full(size, -1.0), np.full(size, most)
    while (low < high).any():
        middle = np.ceil((low + high) / 2)
        good = fits(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle - 1)
    return low


def _layer_s(layer: LayerTime, clock: float) -> Array:
    """Seconds of a rank's own layer, without waiting."""
    dense_s, expert_s, exposed_s = _parts_s(layer, clock)
    return dense_s + exposed_s + expert_s


def _slowest_layer_s(layers: Sequence[LayerTime], clock: float) -> Array:
    """Seconds of a layer of the group, which waits for the slowest in each of its parts."""
    dense_s, expert_s, exposed_s = (
        np.maximum(*each) for each in zip(*(_parts_s(one, clock) for one in layers), strict=True)
    )
    return np.asarray(dense_s + exposed_s + expert_s)


def _parts_s(layer: LayerTime, clock: float) -> tuple[Array, Array, Array]:
    return (
        np.asarray(layer.dense_products_s) / clock + layer.dense_memory_s,
        np.asarray(layer.expert_products_s) / clock + layer.expert_memory_s,
        np.asarray(layer.exposed_s),
    )
