"""A catalogue as the planner's options: what a run can be at, and what going there takes.

Invariant: what nobody measured is not free. A switch without measured joules draws as if the
thirstier of both points trained on; GPUs that were given back are counted on again only where the
catalogue says how long their return takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from wattmesh.policies.planner.problem import Option, OptionTransition
from wattmesh.reconfig.catalogue import PAUSED, Catalogue, OperatingPoint, Release, SwitchCost

SECONDS_PER_HOUR = 3600.0

Transitions = tuple[tuple[OptionTransition | None, ...], ...]


def options(
    catalogue: Catalogue, points: Sequence[OperatingPoint], gpus_held: int, *, pause: bool = False
) -> tuple[Option, ...]:
    """Give an option per point, in their order, and the pause last where it is allowed.

    Args:
        catalogue: says what unused GPUs draw and what making GPUs emitted.
        points: that the run may be at, the one it is at included.
        gpus_held: GPUs the job keeps, used or not.
        pause: whether the run may stop training for a while.
    """
    found = [_option(catalogue, gpus_held, each.id, str(each.layout), each) for each in points]
    if pause:
        found.append(_option(catalogue, gpus_held, PAUSED, PAUSED, None))
    return tuple(found)


def transitions(
    switch: SwitchCost,
    between: Sequence[Option],
    *,
    release: Release,
    resizes: bool = False,
    dwell_s: float = 0.0,
    clock_dwell_s: float = 0.0,
    seconds: Callable[[str, str], float] | None = None,
) -> Transitions:
    """Give what going from each option to each other takes, [from][to].

    Args:
        switch: costs, measured or assumed; those of pairs first.
        between: the options, as `options` gives them.
        release: with `released`, an option of more GPUs waits for them on top.
        resizes: then one of fewer does so too, because the run goes there as another job.
        dwell_s: least time from one layout change to the next.
        clock_dwell_s: the same for changes of the clock.
        seconds: that a switch is expected to take, by the names of two options; None: the
            catalogue's.
    """
    return tuple(
        tuple(
            None
            if origin is target
            else _counted(
                switch,
                (origin, target),
                _transition(
                    switch,
                    origin,
                    target,
                    release is Release.RELEASED and _waits(origin, target, resizes=resizes),
                    (dwell_s, clock_dwell_s),
                ),
                seconds,
            )
            for target in between
        )
        for origin in between
    )


def _option(
    catalogue: Catalogue, gpus_held: int, name: str, layout: str, point: OperatingPoint | None
) -> Option:
    used = point.gpus if point else 0
    charged = used if catalogue.release is Release.RELEASED else max(used, gpus_held)
    idle_w = (charged - used) * catalogue.idle_power_w_per_gpu
    return Option(
        name=name,
        layout=layout,
        tokens_per_s=point.tokens_per_s if point else 0.0,
        power_w=(point.power_w if point else 0.0) + idle_w,
        gpus=charged,
        embodied_g_per_s=charged * catalogue.embodied_g_per_gpu_hour / SECONDS_PER_HOUR,
    )


def _waits(origin: Option, target: Option, *, resizes: bool) -> bool:
    """Say whether a run whose GPUs are given back waits for those of `target`."""
    if target.gpus > origin.gpus:
        return True
    return resizes and 0 < target.gpus < origin.gpus


def _transition(
    switch: SwitchCost,
    origin: Option,
    target: Option,
    waits: bool,
    dwells_s: tuple[float, float],
) -> OptionTransition | None:
    """Give what one transition takes; None when nobody knows how to get the GPUs back."""
    other = origin.layout != target.layout
    wait_s = switch.reacquire_s if waits else 0.0
    if wait_s is None:
        return None
    measured = switch.between(origin.name, target.name)
    seconds = _catalogued_s(switch, origin, target)
    energy_j = max(origin.power_w, target.power_w) * seconds
    if measured is not None:
        energy_j = measured.energy_j
    elif other and switch.layout_energy_j:
        energy_j = switch.layout_energy_j
    return OptionTransition(
        seconds=seconds + wait_s,
        # While it waits for its GPUs it is charged what it drew before: who has them is not known.
        energy_j=energy_j + wait_s * origin.power_w,
        dwell_s=dwells_s[0] if other else dwells_s[1],
    )


def _catalogued_s(switch: SwitchCost, origin: Option, target: Option) -> float:
    """Give the catalogue's seconds of one transition, without the wait for GPUs."""
    pair = switch.between(origin.name, target.name)
    if pair is not None:
        return pair.seconds
    return switch.layout_s if origin.layout != target.layout else switch.clock_s


def _counted(
    switch: SwitchCost,
    ends: tuple[Option, Option],
    way: OptionTransition | None,
    seconds: Callable[[str, str], float] | None,
) -> OptionTransition | None:
    """Replace the seconds by those that are expected.

    Extra seconds draw as the thirstier point. Fewer take fewer joules only where nobody stated any.
    """
    if way is None or seconds is None:
        return way
    longer_s = seconds(ends[0].name, ends[1].name) - _catalogued_s(switch, *ends)
    other = ends[0].layout != ends[1].layout
    pair = switch.between(ends[0].name, ends[1].name)
    stated = pair is not None or (other and switch.layout_energy_j > 0)
    drawn_s = max(0.0, longer_s) if stated else longer_s
    longer_j = max(each.power_w for each in ends) * drawn_s
    return replace(way, seconds=way.seconds + longer_s, energy_j=way.energy_j + longer_j)
