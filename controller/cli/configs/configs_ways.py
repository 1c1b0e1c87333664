"""What switching between one point and every other takes, and where the figures come from. Pure.

Invariant: the figures are those that the planner uses for a run that changes its layout in place,
including waits for GPUs given back before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from wattmesh.policies.break_even import gpus_held
from wattmesh.policies.planner.options import options, transitions
from wattmesh.policies.planner.problem import Option, OptionTransition
from wattmesh.policies.switch_time import (
    Stall,
    StallBasis,
    SwitchRecord,
    SwitchTimes,
    forecast_of,
)
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint


class Basis(StrEnum):
    """Where a switch's seconds come from.

    Its own pair, a prediction from other switches, or what holds for all layouts or all clocks.
    """

    PAIR = "pair"
    PREDICTED = "predicted"
    LAYOUT = "layout"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One switch.

    Attributes:
        seconds: with the wait for GPUs that were given back; `stall` is without.
        energy_estimated: its joules were not stated.
    """

    seconds: float
    energy_j: float
    basis: Basis
    energy_estimated: bool
    stall: Stall


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """From a point to `other` (an id, or `paused`) and back; None: it must not be made."""

    other: str
    leaving: Way | None
    back: Way | None


def ways(
    catalogue: Catalogue, point: OperatingPoint, records: Sequence[SwitchRecord] = ()
) -> tuple[Ways, ...]:
    """Give what it takes from `point` to all others, and to sleep, and back.

    Args:
        catalogue: the point's.
        point: one of its points.
        records: switches of a run of this catalogue, newest first.
    """
    every = options(catalogue, catalogue.points, gpus_held(catalogue), pause=True)
    times = SwitchTimes(
        switch=catalogue.switch,
        records=tuple(records),
        forecast=forecast_of(catalogue, records),
    )
    points = {each.id: each for each in catalogue.points}

    def stall(origin: str, target: str) -> Stall:
        return times.expected(points.get(origin), points.get(target))

    costs = transitions(
        catalogue.switch,
        every,
        release=catalogue.release,
        seconds=lambda origin, target: stall(origin, target).seconds,
    )
    here = next(at for at, each in enumerate(every) if each.name == point.id)
    return tuple(
        Ways(
            other=each.name,
            leaving=_way(catalogue, every[here], each, costs[here][at], stall(point.id, each.name)),
            back=_way(catalogue, each, every[here], costs[at][here], stall(each.name, point.id)),
        )
        for at, each in enumerate(every)
        if at != here
    )


def _way(
    catalogue: Catalogue,
    origin: Option,
    target: Option,
    cost: OptionTransition | None,
    stall: Stall,
) -> Way | None:
    if cost is None:
        return None
    switch = catalogue.switch
    basis = Basis.LAYOUT if origin.layout != target.layout else Basis.CLOCK
    paired = switch.between(origin.name, target.name) is not None
    stated = paired or (basis is Basis.LAYOUT and switch.layout_energy_j > 0)
    if paired or stall.basis is StallBasis.MEASURED:
        basis = Basis.PAIR
    elif stall.basis is StallBasis.PREDICTED:
        basis = Basis.PREDICTED
    return Way(
        seconds=cost.seconds,
        energy_j=cost.energy_j,
        basis=basis,
        energy_estimated=not stated and cost.energy_j > 0,
        stall=stall,
    )
