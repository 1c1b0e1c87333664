"""Runs that share GPUs and power, in slots of time: plain numbers, frozen. Pure.

GPUs that no run owns draw `idle_w_per_gpu`, or nothing where they are switched off. So a GPU that
one run gives up saves grams only while it is off, or while another run trains on it.

Invariant: a slot is at least as long as any transition, so that each is over in the slot it begins
in; no point draws less than its GPUs would idle.
"""

from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, isfinite

from wattmesh.errors import InputInvalid
from wattmesh.policies.planner.options import Transitions
from wattmesh.policies.planner.problem import Option
from wattmesh.policies.slowing import MARGIN

EARLY_S = 1e-6
"""Seconds by which a moment may miss a slot's border."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """One run of the cluster.

    Attributes:
        first: slot from which on it is there. `deadline_s`: from the start of the first slot.
        tokens: left to train, > 0.
        options: what it can be at; watts of the GPUs in use, nothing for others.
        start: index of the option it is at: before it has begun, one without GPUs.
        submitted: index of the option that it was submitted at.
        priority: whose deadline counts first where not all can be kept; higher first.
    """

    name: str
    first: int
    deadline_s: float
    tokens: float
    options: tuple[Option, ...]
    transitions: Transitions
    start: int
    submitted: int
    priority: int = 0

    @property
    def fastest(self) -> float:
        """Tokens/s of the fastest option."""
        return max(each.tokens_per_s for each in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCluster:
    """What runs share.

    Attributes:
        seconds, g_per_kwh: of each slot.
        gpus: that there are.
        cap_w: per slot, idle GPUs included; empty: no cap.
        idle_w_per_gpu: drawn by a GPU that no run owns; 0: it is switched off.
        margin: a run may draw this share more than its points say; a cap leaves room for it.
    """

    seconds: tuple[float, ...]
    g_per_kwh: tuple[float, ...]
    gpus: int
    cap_w: tuple[float, ...] = ()
    idle_w_per_gpu: float = 0.0
    margin: float = MARGIN

    def __post_init__(self) -> None:
        """Refuse what has no meaning.

        Raises:
            InputInvalid: says what is wrong.
        """
        count = len(self.seconds)
        numbers = (*self.g_per_kwh, *self.cap_w, self.idle_w_per_gpu, self.margin)
        checks = (
            (count and all(0 < each < inf for each in self.seconds), "a slot has no length"),
            (len(self.g_per_kwh) == count, f"{count} slots, {len(self.g_per_kwh)} intensities"),
            (len(self.cap_w) in {0, count}, f"{count} slots, {len(self.cap_w)} caps"),
            (self.gpus > 0, f"{self.gpus} GPUs are none to share"),
            (all(isfinite(each) and each >= 0 for each in numbers), "a number is negative"),
        )
        wrong = next((words for fine, words in checks if not fine), "")
        if wrong:
            raise InputInvalid(f"cluster: {wrong}")
        least = min(self.cap_w, default=inf)
        if least < self.idle_w:
            raise InputInvalid(
                f"cluster: the cap of {least:g} W is below the {self.idle_w:g} W that "
                f"{self.gpus} idle GPUs draw; raise it, or let GPUs be switched off"
            )

    @property
    def idle_w(self) -> float:
        """Watts of all GPUs when no run owns any."""
        return self.gpus * self.idle_w_per_gpu

    @property
    def edges_s(self) -> tuple[float, ...]:
        """Borders of the slots."""
        return tuple(accumulate(self.seconds, initial=0.0))

    def until(self, end_s: float) -> int:
        """Give the number of slots that begin before `end_s`."""
        return sum(edge < end_s - EARLY_S for edge in self.edges_s[:-1])


def checked(cluster: SharedCluster, run: SharedRun) -> SharedRun:
    """Give a run as the cluster counts it: nothing in it draws less than idle GPUs do.

    Raises:
        InputInvalid: a point draws less than its GPUs would idle, a transition is longer than a
            slot, or the run has no time.
    """
    for each in run.options:
        idle_w = each.gpus * cluster.idle_w_per_gpu
        if each.power_w < idle_w * (1 - 1e-9):
            raise InputInvalid(
                f"run {run.name}: point {each.name} draws {each.power_w:g} W, less than its "
                f"{each.gpus} GPUs at idle ({idle_w:g} W)"
            )
    if not (0 < run.tokens < inf and 0 <= run.first < len(cluster.seconds)):
        raise InputInvalid(f"run {run.name}: {run.tokens:g} tokens from slot {run.first} on")
    shortest = min(cluster.seconds)
    rows = []
    for origin, row in zip(run.options, run.transitions, strict=True):
        ways = []
        for target, way in zip(run.options, row, strict=True):
            if way is not None and way.seconds > shortest:
                raise InputInvalid(
                    f"run {run.name}: from {origin.name} to {target.name} takes {way.seconds:g} s, "
                    f"longer than a slot of {shortest:g} s; make slots longer"
                )
            idle_w = max(origin.gpus, target.gpus) * cluster.idle_w_per_gpu
            least_j = idle_w * way.seconds if way is not None else 0.0
            ways.append(way and replace(way, energy_j=max(way.energy_j, least_j)))
        rows.append(tuple(ways))
    return replace(run, transitions=tuple(rows))
