"""What all runs came to together, second by second: the judge of every rule. Plain Python. Pure.

Each run is followed along its path; at every moment the watts of all runs and of the GPUs that no
run owns are added up, charged at the grid of that moment and compared with the cap.

Invariant: shares no code with the planner, nor with what lays runs out for it; a GPU is charged to
one run, or to the cluster as idle, in every second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from wattmesh.policies.cluster.shared import SharedCluster, SharedRun
from wattmesh.telemetry.readings import J_PER_KWH

DONE = 1e-9
"""Share of the work that rounding may leave."""

OVER = 1e-6
"""Share of a limit by which a sum of watts may miss it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStretch:
    """A run's watts and GPUs from `start_s` until `end_s`."""

    start_s: float
    end_s: float
    watts: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccount:
    """What one run came to.

    Attributes:
        grams: of the GPUs it owned. `done_s`: None: never.
        left: tokens not trained.
        switches: changes of its point, sleep and wake included; the first begin is none.
    """

    name: str
    grams: float
    energy_j: float
    done_s: float | None
    left: float
    switches: int
    stretches: tuple[DrawnStretch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccount:
    """What all runs, and the GPUs that none owned, came to.

    Attributes:
        idle_g: of GPUs that no run owned and that were not off.
        over_cap_s: seconds above the cap; `longest_over_s`: the longest of them on end.
        over_gpus_s: seconds in which runs owned more GPUs than there are.
        most_w: the largest draw.
    """

    runs: Mapping[str, RunAccount]
    idle_g: float
    idle_j: float
    over_cap_s: float
    longest_over_s: float
    over_gpus_s: float
    most_w: float

    @property
    def grams(self) -> float:
        """Of everything."""
        return self.idle_g + sum(each.grams for each in self.runs.values())

    @property
    def energy_j(self) -> float:
        """Of everything."""
        return self.idle_j + sum(each.energy_j for each in self.runs.values())


def account(
    cluster: SharedCluster, runs: Sequence[SharedRun], paths: Mapping[str, Sequence[int]]
) -> ClusterAccount:
    """Follow all runs; `paths`: option per slot, from each run's first slot on."""
    edges_s = cluster.edges_s
    followed = {each.name: _followed(cluster, edges_s, each, paths[each.name]) for each in runs}
    moments = {*edges_s}
    for run in followed.values():
        for each in run.stretches:
            moments |= {each.start_s, each.end_s}
    added = sorted(moments)
    place = {at: n for n, at in enumerate(added)}
    watts, gpus = [0.0] * len(added), [0] * len(added)
    for run in followed.values():
        for each in run.stretches:
            for n in range(place[each.start_s], place[each.end_s]):
                watts[n] += each.watts
                gpus[n] += each.gpus
    drawn = list(zip(watts, gpus, strict=True))
    return _summed(cluster, added, drawn, followed)


def _summed(
    cluster: SharedCluster,
    moments: Sequence[float],
    drawn: Sequence[tuple[float, int]],
    runs: Mapping[str, RunAccount],
) -> ClusterAccount:
    idle_g = idle_j = over_s = longest_s = running_s = over_gpus_s = most_w = 0.0
    slot, edges_s = 0, cluster.edges_s
    for (start_s, end_s), (watts, gpus) in zip(pairwise(moments), drawn, strict=False):
        while edges_s[slot + 1] <= start_s:
            slot += 1
        seconds = end_s - start_s
        free_w = max(0, cluster.gpus - gpus) * cluster.idle_w_per_gpu
        total_w = watts + free_w
        idle_j += free_w * seconds
        idle_g += free_w * seconds * cluster.g_per_kwh[slot] / J_PER_KWH
        over = bool(cluster.cap_w) and total_w > cluster.cap_w[slot] * (1 + OVER)
        over_s += seconds * over
        running_s = running_s + seconds if over else 0.0
        longest_s = max(longest_s, running_s)
        over_gpus_s += seconds * (gpus > cluster.gpus)
        most_w = max(most_w, total_w)
    return ClusterAccount(
        runs=runs,
        idle_g=idle_g,
        idle_j=idle_j,
        over_cap_s=over_s,
        longest_over_s=longest_s,
        over_gpus_s=over_gpus_s,
        most_w=most_w,
    )


def _followed(
    cluster: SharedCluster, edges_s: Sequence[float], run: SharedRun, path: Sequence[int]
) -> RunAccount:
    """Follow one run until its work is done or its path ends."""
    at, left, grams, energy_j, switches = run.start, run.tokens, 0.0, 0.0, 0
    begun, done_s = bool(run.options[run.start].gpus), None
    found: list[DrawnStretch] = []
    for slot, option in enumerate(path, start=run.first):
        now_s, end_s = edges_s[slot], edges_s[slot + 1]
        here = run.options[option]
        parts: list[DrawnStretch] = []
        if option != at:
            way = run.transitions[at][option]
            if way is None:
                raise ValueError(f"{run.name}: no way to {here.name}")
            switches += begun
            begun = begun or here.gpus > 0
            if way.seconds:
                both = max(here.gpus, run.options[at].gpus)
                watts = way.energy_j / way.seconds
                parts.append(
                    DrawnStretch(start_s=now_s, end_s=now_s + way.seconds, watts=watts, gpus=both)
                )
                now_s += way.seconds
            else:
                energy_j += way.energy_j
                grams += way.energy_j * cluster.g_per_kwh[slot] / J_PER_KWH
            at = option
        if here.tokens_per_s and left <= here.tokens_per_s * (end_s - now_s) + run.tokens * DONE:
            end_s = min(end_s, now_s + left / here.tokens_per_s)
            done_s = end_s
        left = max(0.0, left - here.tokens_per_s * (end_s - now_s))
        if end_s > now_s:
            parts.append(
                DrawnStretch(start_s=now_s, end_s=end_s, watts=here.power_w, gpus=here.gpus)
            )
        for part in parts:
            joules = part.watts * (part.end_s - part.start_s)
            energy_j += joules
            grams += joules * cluster.g_per_kwh[slot] / J_PER_KWH
        found += parts
        if done_s is not None:
            break
    return RunAccount(
        name=run.name,
        grams=grams,
        energy_j=energy_j,
        done_s=done_s,
        left=0.0 if done_s is not None else left,
        switches=switches,
        stretches=tuple(found),
    )
