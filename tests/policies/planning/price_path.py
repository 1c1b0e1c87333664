"""The schedule that reaches the price rule's bound, slot by slot: the bound is tight."""

from dataclasses import dataclass

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.hull import Hull
from wattmesh.policies.rules.price import ROUNDING, PriceSolution
from wattmesh.policies.shared_grid import from_nothing
from wattmesh.telemetry.readings import J_PER_KWH

IDLE = -1
"""Level of a slot in which the run is over already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlot:
    """Tokens and grams of one slot of the best schedule.

    Attributes:
        level: the highest vertex the slot runs at, slowest 0; -1 when the run is over by then.
        share: of the slot's time at `level`; the rest is at the vertex below (in the slot of
            completion: at none). Below 1 in one slot at most.
    """

    slot: IntensitySlot
    level: int
    share: float = 1.0


def path(hull: Hull, solution: PriceSolution) -> tuple[PlannedSlot, ...]:
    """Give the best schedule slot by slot, up to the one in which the work ends.

    Steps that cost exactly mu are taken as early as possible, so that at most one slot is shared.
    """
    taken: list[PlannedSlot] = []
    tied: list[int] = []
    tokens = 0.0
    for index, slot in enumerate(solution.slots[: solution.last + 1]):
        level = IDLE if index == solution.last else 0
        for step, price, _ in _steps(hull, slot, ending=index == solution.last):
            if price < solution.mu_g_per_token:
                level = step
            elif price == solution.mu_g_per_token:
                tied.append(index)
        taken.append(PlannedSlot(slot=slot, level=level))
        tokens += hull.vertices[level].tokens_per_s * _seconds(slot) if level != IDLE else 0.0
    for index in tied:
        ending = index == solution.last
        level, _, more = next(
            step
            for step in _steps(hull, taken[index].slot, ending=ending)
            if step[0] > taken[index].level
        )
        share = min(1.0, (solution.tokens - tokens) / (more * _seconds(taken[index].slot)))
        if share <= ROUNDING:
            break
        tokens += share * more * _seconds(taken[index].slot)
        taken[index] = PlannedSlot(slot=taken[index].slot, level=level, share=share)
    return tuple(taken)


def _seconds(slot: IntensitySlot) -> float:
    return (slot.end - slot.start).total_seconds()


def _steps(hull: Hull, slot: IntensitySlot, *, ending: bool) -> list[tuple[int, float, float]]:
    """List a slot's steps, cheapest first: (vertex reached, grams per token, tokens/s more)."""
    intensity = slot.g_per_kwh / J_PER_KWH
    first, alone = from_nothing(hull)
    steps: list[tuple[int, float, float]] = []
    if ending:
        steps.append((first, intensity * alone, hull.vertices[first].tokens_per_s))
    vertices = hull.vertices
    for level in range(first + 1 if ending else 1, len(vertices)):
        price = intensity * vertices[level].marginal_j_per_token
        more = vertices[level].tokens_per_s - vertices[level - 1].tokens_per_s
        steps.append((level, price, more))
    return steps
