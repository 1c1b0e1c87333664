"""Grams by the PUE that they were priced with: rows of a slot, added up. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class PueGrams:
    """Grams that were priced with one PUE, in thousandths; `upper_ug`: the most beyond them."""

    pue_milli: int
    carbon_ug: int
    upper_ug: int


def by_pue(rows: Sequence[Row[Any]]) -> tuple[PueGrams, ...]:
    """Sum the grams of one slot by their PUE; rows without any say nothing of it."""
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        grams = (int(row.carbon_ug), int(row.upper_ug))
        if any(grams):
            carbon_ug, upper_ug = found.get(row.pue_milli, (0, 0))
            found[row.pue_milli] = (carbon_ug + grams[0], upper_ug + grams[1])
    return tuple(
        PueGrams(pue_milli=pue_milli, carbon_ug=carbon_ug, upper_ug=upper_ug)
        for pue_milli, (carbon_ug, upper_ug) in sorted(found.items())
    )
