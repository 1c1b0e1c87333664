"""When each point of a catalogue is worth running: by the hull, and by what making GPUs emitted.

The statements are of a job that holds the GPUs of its largest point and may be at any of them,
proven or not: what a point would be worth, not whether it may be switched to. Ratios begin where
the first step up begins to pay: to wake at the slowest point, where sleeping costs nothing, else to
leave the slowest point.

Invariant: a break-even intensity is told only where grams of making are stated; nothing stated is
not nothing emitted.
"""

from dataclasses import dataclass

from wattmesh.policies.hull import Vertex, break_even_g_per_kwh, lower_hull
from wattmesh.policies.planner.options import options
from wattmesh.quantities import figures, intensity
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint, Release


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowingDown:
    """From which intensity on slowing down from `faster` is right, the making of GPUs included.

    Attributes:
        faster: id of the next faster point on the hull.
        g_per_kwh: below it slowing down emits more in all; None: it does at every intensity, for
            a token takes more joules at the slower point.
    """

    faster: str
    g_per_kwh: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """One point.

    Attributes:
        vertex: its place on the hull; None when it is never worth running, and `why_not` says why.
        slower: id of the next slower point on the hull; "" for the slowest and off the hull.
        ratio: how many times lower the intensity must be than where going up to the point before
            began to pay; None for the first step up, what is below it, and off the hull.
        in_all: the same against the first step up; 1 for that itself.
        slowing_down: None for the fastest, off the hull, and where no grams of making are stated.
    """

    point: OperatingPoint
    vertex: Vertex | None = None
    why_not: str = ""
    slower: str = ""
    ratio: float | None = None
    in_all: float | None = None
    slowing_down: SlowingDown | None = None


def gpus_held(catalogue: Catalogue) -> int:
    """Give how many GPUs a job of this catalogue holds: those of its largest point."""
    return max(point.gpus for point in catalogue.points)


def break_evens(catalogue: Catalogue) -> tuple[BreakEven, ...]:
    """Say of every point when it is worth running: the hull slowest first, then the others."""
    hull = lower_hull(catalogue, catalogue.points, gpus_held(catalogue))
    first = _first_step(catalogue, hull.vertices)
    found = [_of(catalogue, hull.vertices, at, first) for at in range(len(hull.vertices))]
    found += [BreakEven(point=each.point, why_not=each.reason) for each in hull.dominated]
    return tuple(found)


def embodied_sentence(found: BreakEven) -> str:
    """Say from which intensity on slowing down to a point is right; "" where nothing is told."""
    if found.slowing_down is None:
        return ""
    slow, fast = found.point.id, found.slowing_down.faster
    if found.slowing_down.g_per_kwh is None:
        return (
            f"A token takes more joules at {slow} than at {fast}: slowing down to it emits more at "
            "every intensity, and serves only to move work into cleaner hours."
        )
    if not found.slowing_down.g_per_kwh:
        return f"Slowing down from {fast} to {slow} never emits more in all."
    return (
        f"Below {intensity(found.slowing_down.g_per_kwh)} slowing down from {fast} to {slow} emits "
        "more in all: the joules it saves weigh less than the longer use of the hardware."
    )


def hull_sentence(found: BreakEven) -> str:
    """Say at which ratio of intensities a point becomes worth running, or why at none."""
    if found.vertex is None:
        return found.why_not
    name = found.point.id
    one_more = f"a token more takes {figures(found.vertex.marginal_j_per_token)} J"
    if found.ratio is not None:
        return (
            f"{name} is worth running where the grid is {figures(found.ratio)}x cleaner than where "
            f"{found.slower} becomes so: {one_more}."
        )
    if found.slower:
        return f"{name} is the first step up, from {found.slower}: {one_more}."
    if found.in_all is None:
        return f"{name} is the slowest point worth running."
    return f"{name} is the slowest point worth running, and what to wake at: {one_more}."


def _first_step(catalogue: Catalogue, steps: tuple[Vertex, ...]) -> int:
    """Give the index of the vertex that ratios begin at.

    The joules of the slowest are told against not running at all, for nothing. That is so only
    where GPUs are given back; and where the next step up takes less a token, sleeping and that
    one are better than the slowest.
    """
    if catalogue.release is not Release.RELEASED:
        return 1
    return 0 if len(steps) == 1 or (steps[1].ratio or 0.0) >= 1.0 else 1


def _of(catalogue: Catalogue, steps: tuple[Vertex, ...], at: int, first: int) -> BreakEven:
    vertex, per_token = steps[at], steps[at].marginal_j_per_token
    return BreakEven(
        point=vertex.point,
        vertex=vertex,
        slower=steps[at - 1].point.id if at else "",
        ratio=vertex.ratio if at > first else None,
        in_all=per_token / steps[first].marginal_j_per_token if at >= first else None,
        slowing_down=_slowing_down(catalogue, vertex, steps[at + 1]) if steps[at + 1 :] else None,
    )


def _slowing_down(catalogue: Catalogue, slow: Vertex, fast: Vertex) -> SlowingDown | None:
    """Weigh the joules that slowing down saves against the longer use of the hardware."""
    if not catalogue.embodied_g_per_gpu_hour:
        return None
    made = options(catalogue, (slow.point, fast.point), gpus_held(catalogue))
    return SlowingDown(
        faster=fast.point.id,
        g_per_kwh=break_even_g_per_kwh(
            slow,
            fast,
            slow_embodied_g_per_s=made[0].embodied_g_per_s,
            fast_embodied_g_per_s=made[1].embodied_g_per_s,
        ),
    )
