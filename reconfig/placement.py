"""Which expert each row of a stack of experts holds, for every layer of experts (torch-free).

Row r of a stack is on the rank that a layout gives it; a placement says which expert lies there.
Invariant: the checkpoint does not know it. Experts are stored by number, so that a placement is a
choice of rows to read and never a change of what is trained.
"""

from typing import Annotated

from wattmesh.reconfig import ranges

MOST_EXPERTS = 4096
MOST_LAYERS = 1024

Rows = Annotated[
    tuple[Annotated[int, ranges.Whole(0, MOST_EXPERTS - 1, "as an expert")], ...],
    ranges.Many(MOST_EXPERTS),
]
Placement = Annotated[tuple[Rows, ...], ranges.Many(MOST_LAYERS)]
"""By layer of experts, the expert in each row; empty: row r holds expert r everywhere."""


def problem(placement: Placement, *, layers: int, experts: int) -> str:
    """Say why a placement does not fit a model; "" where it does.

    Args:
        placement: as ordered.
        layers: how many layers of the model have experts.
        experts: of each of them.
    """
    if not placement:
        return ""
    if len(placement) != layers:
        return f"it places {len(placement)} layers of experts, the model has {layers}"
    for layer, rows in enumerate(placement):
        if len(rows) != experts:
            return f"it places {len(rows)} experts in layer {layer}, the model has {experts}"
        if sorted(rows) != list(range(experts)):
            return f"in layer {layer} it does not place each of {experts} experts once"
    return ""


def settled(placement: Placement) -> Placement:
    """Return the placement, () for one in which every expert lies in the row of its number."""
    natural = all(tuple(rows) == tuple(range(len(rows))) for rows in placement)
    return () if natural else tuple(tuple(rows) for rows in placement)


def moved(old: Placement, new: Placement) -> int:
    """Count the experts that lie in another row than before, over all layers."""
    natural = tuple(tuple(range(len(rows))) for rows in old or new)
    pairs = zip(old or natural, new or natural, strict=True)
    return sum(a != b for before, after in pairs for a, b in zip(before, after, strict=True))
