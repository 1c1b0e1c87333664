"""Expert groups over two classes of GPUs with equal counts beside counts by speed. Pure.

Invariant: both are costed on one configuration by one model, so that their difference is the
counts' alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.layout_search.expert_groups import (
    WAY,
    Array,
    DealtExperts,
    ExpertGroups,
    GroupCosts,
    Pair,
    counts_by_speed,
    equal_counts,
    expert_groups,
    group_costs,
    rows_of_gpu,
    take_groups,
)
from wattmesh.policies.layout_search.gpu_parts import MixedJob
from wattmesh.policies.layout_search.search import CLOCKS, on_hull, undominated
from wattmesh.policies.parallelism.predict import CostModel

Costed = tuple[tuple[DealtExperts, GroupCosts], tuple[DealtExperts, GroupCosts]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedExperts:
    """One way to count experts, for the configurations that are compared; pairs by class.

    Attributes:
        most, mean: experts of the GPU of a class that holds most, and of an average one.
        rows: that the fullest GPU of a class has room for in a layer and microbatch.
        step_s, j_per_token: infinite and as they would be, where they do not fit.
        memory_share: of the fullest GPU.
    """

    most: Pair
    mean: Pair
    rows: Pair
    step_s: Array
    j_per_token: Array
    memory_share: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCounts:
    """Groups over both classes that nothing beats with counts by speed, fastest first.

    Attributes:
        configurations: how many there are. `fitting`: with equal counts, and by speed.
        groups: those that are compared, at these clocks.
        on_hull: of speed and power, among themselves.
    """

    configurations: int
    fitting: tuple[int, int]
    groups: ExpertGroups
    clock: Array
    equal: CountedExperts
    by_speed: CountedExperts
    on_hull: NDArray[np.bool_]


def cost_groups(
    job: MixedJob, model: CostModel, excluded: dict[str, int]
) -> tuple[ExpertGroups, Costed]:
    """Cost every configuration with equal counts and with counts by speed, in this order."""
    groups = expert_groups(job, excluded)
    equal = equal_counts(job, groups)
    by_speed = counts_by_speed(job, groups, model)
    costs = [group_costs(job, groups, dealt, model) for dealt in (equal, by_speed)]
    for name, found in zip(("equal counts", "counts by speed"), costs, strict=True):
        late = int((~np.isfinite(found.step_s[0])).sum()) if len(groups.batches) else 0
        excluded[f"{WAY}: fit into the memory of both, {name}"] = late
    return groups, ((equal, costs[0]), (by_speed, costs[1]))


def compare_counts(job: MixedJob, groups: ExpertGroups, costed: Costed) -> ComparedCounts:
    """Choose what nothing beats with counts by speed, and put equal counts beside it."""
    count = len(groups.batches)
    _, best = costed[1]
    step_s, joules = best.step_s.ravel(), best.joules.ravel()
    share = np.tile(best.memory_share, len(CLOCKS))
    usable = np.flatnonzero(np.isfinite(step_s))
    front = usable[undominated(step_s[usable], joules[usable], share[usable])]
    which, clock = front % max(count, 1), np.repeat(np.asarray(CLOCKS), count)[front]
    chosen = take_groups(groups, which)
    tokens = job.global_batch * job.seq_len

    def counted(dealt: DealtExperts, found: GroupCosts) -> CountedExperts:
        most = dealt.most[0][which], dealt.most[1][which]
        return CountedExperts(
            most=most,
            mean=(dealt.mean[0][which], dealt.mean[1][which]),
            rows=rows_of_gpu(job, chosen, most),
            step_s=found.step_s.ravel()[front],
            j_per_token=found.joules.ravel()[front] / tokens,
            memory_share=found.memory_share[which],
        )

    equal, by_speed = (counted(*each) for each in costed)
    return ComparedCounts(
        configurations=count,
        fitting=tuple(int(np.isfinite(each.step_s[0]).sum()) for _, each in costed),  # type: ignore[arg-type] # two
        groups=chosen,
        clock=clock,
        equal=equal,
        by_speed=by_speed,
        on_hull=on_hull(tokens / by_speed.step_s, by_speed.j_per_token),
    )
