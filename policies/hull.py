"""Which operating points are ever worth running: the lower convex hull of speed and power.

Between two points a run can share its time. So a point is worth running at some carbon intensity
only where no such mixture gives its speed for fewer watts: a schedule of least carbon uses vertices
of the hull only (docs/policies.md).

Invariant: along the hull speed, power and the marginal joules per token all rise strictly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from wattmesh.quantities import count, watts
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint
from wattmesh.telemetry.readings import J_PER_KWH

FLAT = 1e-9
"""Relative difference under which two slopes are the same: sharing time is then as good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """A point on the hull.

    Attributes:
        power_w: everything the job is charged while it runs here, idle GPUs it holds included.
        marginal_j_per_token: joules for each token more than at the vertex before; for the slowest
            vertex its joules per token against not running at all.
        ratio: how many times lower the intensity must be than where the vertex before became
            worth running; None for the slowest.
    """

    point: OperatingPoint
    tokens_per_s: float
    power_w: float
    marginal_j_per_token: float
    ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DominatedPoint:
    """A point that is never worth running, and the sentence that says why."""

    point: OperatingPoint
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hull:
    """The useful points, slowest first, and those that are not."""

    vertices: tuple[Vertex, ...]
    dominated: tuple[DominatedPoint, ...] = ()


def lower_hull(catalogue: Catalogue, points: Iterable[OperatingPoint], gpus_held: int) -> Hull:
    """Find the lower convex hull of (tokens per second, watts while `gpus_held` GPUs are held).

    Watts include the idle power of unused GPUs as the catalogue's `release` says. The hull starts
    at the point of least power: what is slower than that and draws more is never useful.
    """
    measured = [(each, catalogue.held_power_w(each, gpus_held)) for each in points]
    # Slowest first; of equal speeds the thriftiest, of equal points the first by name.
    measured.sort(key=lambda each: (each[0].tokens_per_s, each[1], each[0].id))
    speed = [point.tokens_per_s for point, _ in measured]
    chain = [measured[index] for index in lower_chain(speed, [power_w for _, power_w in measured])]
    kept = {point.id for point, _ in chain}
    return Hull(
        vertices=_vertices(chain),
        dominated=tuple(
            DominatedPoint(point=point, reason=_why_dominated(point, power_w, chain))
            for point, power_w in measured
            if point.id not in kept
        ),
    )


def lower_chain(speed: Sequence[float], power: Sequence[float]) -> list[int]:
    """Find the lower convex hull of speed and power, as indices, slowest first.

    It starts at the least power. Of equal entries the first is on it.
    """
    chain: list[int] = []
    for index in sorted(range(len(speed)), key=lambda each: (speed[each], power[each])):
        if chain and speed[index] <= speed[chain[-1]]:
            continue
        while chain and power[index] <= power[chain[-1]]:
            chain.pop()
        while len(chain) > 1 and _above(speed, power, chain[-2], chain[-1], index):
            chain.pop()
        chain.append(index)
    return chain


def break_even_g_per_kwh(
    slow: Vertex, fast: Vertex, *, slow_embodied_g_per_s: float, fast_embodied_g_per_s: float
) -> float | None:
    """Give the intensity below which slowing down from `fast` to `slow` emits more in all.

    The slower point saves joules per token and takes longer, so each token bears more of the
    hardware's making: c = (e_slow / r_slow - e_fast / r_fast) / (P_fast / r_fast - P_slow / r_slow)
    with e grams of making per second, r tokens per second and P watts.

    Returns:
        0 when the slower one is never worse; None when it saves no joules, so it always is.
    """
    saved_j = fast.power_w / fast.tokens_per_s - slow.power_w / slow.tokens_per_s
    more_g = slow_embodied_g_per_s / slow.tokens_per_s - fast_embodied_g_per_s / fast.tokens_per_s
    if saved_j <= 0:
        return None
    return max(0.0, more_g / saved_j) * J_PER_KWH


def _slope(low: tuple[OperatingPoint, float], high: tuple[OperatingPoint, float]) -> float:
    """Joules per token gained between two points."""
    return (high[1] - low[1]) / (high[0].tokens_per_s - low[0].tokens_per_s)


def _above(
    speed: Sequence[float], power: Sequence[float], low: int, middle: int, high: int
) -> bool:
    """Say whether sharing time between `low` and `high` is at least as good as `middle`."""
    rise = (power[middle] - power[low]) / (speed[middle] - speed[low])
    return rise >= (power[high] - power[middle]) / (speed[high] - speed[middle]) * (1 - FLAT)


def _vertices(chain: Sequence[tuple[OperatingPoint, float]]) -> tuple[Vertex, ...]:
    """Give each vertex its marginal joules per token and its ratio to the one before."""
    vertices: list[Vertex] = []
    for position, (point, power_w) in enumerate(chain):
        if position:
            marginal = _slope(chain[position - 1], chain[position])
            ratio = marginal / vertices[-1].marginal_j_per_token
        else:
            marginal, ratio = power_w / point.tokens_per_s, None
        vertices.append(
            Vertex(
                point=point,
                tokens_per_s=point.tokens_per_s,
                power_w=power_w,
                marginal_j_per_token=marginal,
                ratio=ratio,
            )
        )
    return tuple(vertices)


def _why_dominated(
    point: OperatingPoint, power_w: float, chain: Sequence[tuple[OperatingPoint, float]]
) -> str:
    have = f"{point.id} draws {watts(power_w)} for {count(point.tokens_per_s)} tokens/s"
    for other, other_w in chain:
        if other.tokens_per_s >= point.tokens_per_s and other_w <= power_w:
            return (
                f"{have}, {other.id} gives {count(other.tokens_per_s)} tokens/s for "
                f"{watts(other_w)}, so {point.id} is never worth running."
            )
    low, high = next(
        (low, high)
        for low, high in pairwise(chain)
        if low[0].tokens_per_s <= point.tokens_per_s <= high[0].tokens_per_s
    )
    mixed_w = low[1] + _slope(low, high) * (point.tokens_per_s - low[0].tokens_per_s)
    return (
        f"{have}, sharing time between {low[0].id} and {high[0].id} gives the same for "
        f"{watts(mixed_w)}, so {point.id} is never worth running."
    )
