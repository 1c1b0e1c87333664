"""What switching between one point and every other takes, and where the figures come from. Pure.

Invariant: the figures are those that the planner uses, including waits for GPUs given back before.
"""

from dataclasses import dataclass
from enum import StrEnum

from wattmesh.policies.break_even import gpus_held
from wattmesh.policies.planner.options import options, transitions
from wattmesh.policies.planner.problem import Option, OptionTransition
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint


class Basis(StrEnum):
    """Where a switch's figures come from: its own pair, or those of all layouts or all clocks."""

    PAIR = "pair"
    LAYOUT = "layout"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One switch. `energy_estimated`: its joules were not stated."""

    seconds: float
    energy_j: float
    basis: Basis
    energy_estimated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """From a point to `other` (an id, or `paused`) and back; None: it must not be made."""

    other: str
    leaving: Way | None
    back: Way | None


def ways(catalogue: Catalogue, point: OperatingPoint) -> tuple[Ways, ...]:
    """Give what it takes from `point` to all others, and to sleep, and back."""
    every = options(catalogue, catalogue.points, gpus_held(catalogue), pause=True)
    costs = transitions(catalogue.switch, every, release=catalogue.release)
    here = next(at for at, each in enumerate(every) if each.name == point.id)
    return tuple(
        Ways(
            other=each.name,
            leaving=_way(catalogue, every[here], each, costs[here][at]),
            back=_way(catalogue, each, every[here], costs[at][here]),
        )
        for at, each in enumerate(every)
        if at != here
    )


def _way(
    catalogue: Catalogue, origin: Option, target: Option, cost: OptionTransition | None
) -> Way | None:
    if cost is None:
        return None
    switch = catalogue.switch
    basis = Basis.LAYOUT if origin.layout != target.layout else Basis.CLOCK
    if switch.between(origin.name, target.name) is not None:
        basis = Basis.PAIR
    stated = basis is Basis.PAIR or (basis is Basis.LAYOUT and switch.layout_energy_j > 0)
    return Way(
        seconds=cost.seconds,
        energy_j=cost.energy_j,
        basis=basis,
        energy_estimated=not stated and cost.energy_j > 0,
    )
