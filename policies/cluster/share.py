"""What a run takes of what is shared, by slot: GPUs, and watts above those of idle GPUs. Pure.

All GPUs of the cluster draw at least their idle power, whoever owns them. So a run is charged with
what it draws above that, and the idle power of all GPUs is the cluster's own: the sum is the same,
and an owner that a GPU goes to pays for it from then on.

Shapes: T slots, K options, R kinds of what is shared: GPUs first, then watts where there is a cap.
"""

from dataclasses import dataclass, replace

import numpy as np

from wattmesh.policies.cluster.shared import SharedCluster, SharedRun
from wattmesh.policies.planner.arrays import Floats
from wattmesh.policies.planner.problem import OptionTransition, PlanningProblem
from wattmesh.policies.planner.route import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShare:
    """A run's own planning problem, and what its options take of what is shared.

    Attributes:
        first: slot of the cluster in which the problem begins.
        problem: until the run has to be done; its watts are those above idle GPUs.
        staying: (K, R) at an option. `going`: (K, K, R) in a slot that begins with a transition.
    """

    name: str
    first: int
    problem: PlanningProblem
    staying: Floats
    going: Floats

    @property
    def slots(self) -> slice:
        """Slots of the cluster that the problem has."""
        return slice(self.first, self.first + len(self.problem.seconds))

    def takes(self, path: Path) -> Floats:
        """Give (len(path), R): what a path takes in each of its slots."""
        before = np.array((self.problem.start, *path[:-1]), dtype=np.int64)
        now = np.array(path, dtype=np.int64)
        moved = (before != now)[:, None]
        return np.asarray(np.where(moved, self.going[before, now], self.staying[now]))


def limits(cluster: SharedCluster) -> Floats:
    """Give (T, R): what there is of each kind in each slot; watts above those of idle GPUs."""
    gpus = np.full(len(cluster.seconds), float(cluster.gpus))
    if not cluster.cap_w:
        return gpus[:, None]
    return np.stack([gpus, np.array(cluster.cap_w) - cluster.idle_w], axis=1)


def idle_g(cluster: SharedCluster) -> float:
    """Give the grams of all GPUs if none were owned: what no plan can change."""
    hours = np.array(cluster.seconds) / 3600
    return float(np.sum(hours * np.array(cluster.g_per_kwh)) * cluster.idle_w / 1000)


def share(cluster: SharedCluster, run: SharedRun, *, done_by_s: float) -> RunShare:
    """Lay a run out for planning.

    Args:
        cluster: the slots, and what there is.
        run: as `shared.checked` gives it.
        done_by_s: when it has to be done, from the start of the first slot.
    """
    until = cluster.until(done_by_s)
    edges_s = cluster.edges_s
    seconds = [edges_s[n + 1] - edges_s[n] for n in range(run.first, until)]
    if seconds:
        seconds[-1] = min(edges_s[until], done_by_s) - edges_s[until - 1]
    idle_w = cluster.idle_w_per_gpu
    problem = PlanningProblem(
        tokens=run.tokens,
        seconds=tuple(seconds),
        g_per_kwh=cluster.g_per_kwh[run.first : until],
        options=tuple(
            replace(each, power_w=max(0.0, each.power_w - each.gpus * idle_w), embodied_g_per_s=0.0)
            for each in run.options
        ),
        start=run.start,
        transitions=tuple(
            tuple(
                way and _above_idle(way, max(origin.gpus, target.gpus) * idle_w)
                for target, way in zip(run.options, row, strict=True)
            )
            for origin, row in zip(run.options, run.transitions, strict=True)
        ),
    )
    staying, going = _taken(cluster, run)
    return RunShare(name=run.name, first=run.first, problem=problem, staying=staying, going=going)


def _above_idle(way: OptionTransition, idle_w: float) -> OptionTransition:
    return replace(way, energy_j=max(0.0, way.energy_j - way.seconds * idle_w))


def _taken(cluster: SharedCluster, run: SharedRun) -> tuple[Floats, Floats]:
    """Give what staying at an option, and going from one to another, takes."""
    kinds, most = len(run.options), 1.0 + cluster.margin
    gpus = np.array([each.gpus for each in run.options], dtype=np.float64)
    watts = np.array([each.needs_w for each in run.options]) * most - gpus * cluster.idle_w_per_gpu
    staying = np.stack([gpus, watts], axis=1)
    both = np.maximum(gpus[:, None], gpus[None, :])
    drawn_w = np.zeros((kinds, kinds))
    for i, row in enumerate(run.transitions):
        for j, way in enumerate(row):
            if way is not None and way.seconds:
                drawn_w[i, j] = way.energy_j / way.seconds * most
    drawn_w -= both * cluster.idle_w_per_gpu
    going = np.stack([both, np.maximum(drawn_w, watts[None, :])], axis=2)
    # A transition of no time has no slot in which both ends' GPUs are held.
    at_once = np.array(
        [[way is not None and not way.seconds for way in row] for row in run.transitions]
    )
    going = np.where(at_once[:, :, None], staying[None, :, :], going)
    kept = 2 if cluster.cap_w else 1
    return staying[:, :kept], going[:, :, :kept]
