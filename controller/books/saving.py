"""The saving of one run, from its rows: the baseline at as many tokens, less what was spent.

Invariant: whole micrograms, equal work only. A saving is None while the baseline is behind the run,
a slot has no grams, or time that nobody measured cannot be bounded; what was not measured counts
against us at the most it can have been (docs/carbon-accounting.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wattmesh.controller.books.accounts import ACTUAL, BASELINE, UNPRICED
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.ledger import EmissionRow, TotalRow
from wattmesh.controller.journal.runs import RunRow
from wattmesh.policies.baseline import Slot, grams_at, price_ug
from wattmesh.telemetry.ledger import EnergyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Slots that retention has summed up: their rows are gone, their sums are not.

    Attributes:
        tokens, reference_ug: of the baseline. `actual_ug`: of the run.
        whole: they all have grams, and nothing of them was unobserved.
    """

    tokens: int = 0
    reference_ug: int = 0
    actual_ug: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a run saved.

    Attributes:
        tokens: trained since the run first registered; the baseline's grams are at so many.
        unobserved_ug: the most that was emitted while nobody measured; None if not known.
    """

    tokens: int
    actual_ug: int
    reference_ug: int | None
    unobserved_ug: int | None
    saved_ug: int | None
    settled: bool


def earlier(rolled: Sequence[TotalRow]) -> Earlier:
    """Add up a run's rolled up slots."""
    reference = [row for row in rolled if row.scenario == BASELINE]
    actual = [row for row in rolled if row.scenario == ACTUAL]
    unpriced = any(row.quality == UNPRICED and row.energy_mj for row in (*reference, *actual))
    return Earlier(
        tokens=sum(row.tokens for row in reference),
        reference_ug=sum(row.carbon_ug for row in reference),
        actual_ug=sum(row.carbon_ug for row in actual),
        whole=not unpriced and not any(row.upper_mj for row in rolled),
    )


def trained(journal: Journal, run: RunRow) -> int:
    """Give the tokens a run trained since it first registered."""
    first = journal.ledger.first_mark(run.run)
    return run.tokens - (first.tokens if first else 0)


def saving(
    *,
    tokens: int,
    actual_ug: int,
    unpriced: bool,
    reference: Sequence[EmissionRow],
    unobserved_ug: int | None,
    before: Earlier,
) -> Saving:
    """Compute a saving.

    Args:
        tokens: trained by the run.
        actual_ug: its grams, those of rolled up slots included.
        unpriced: some of its joules have no grams yet.
        reference: the baseline's rows in time order.
        unobserved_ug: see `unobserved`.
        before: the rolled up slots, which precede all rows.
    """
    reference_ug, reached = _reference(reference, tokens, before)
    settled = reached and not unpriced and before.whole and unobserved_ug is not None
    saved_ug = None
    if settled and reference_ug is not None and unobserved_ug is not None:
        saved_ug = reference_ug - actual_ug - unobserved_ug
    return Saving(
        tokens=tokens,
        actual_ug=actual_ug,
        reference_ug=reference_ug,
        unobserved_ug=unobserved_ug,
        saved_ug=saved_ug,
        settled=settled,
    )


def unobserved(energy: Sequence[EnergyRow], emissions: Sequence[EmissionRow]) -> int | None:
    """Give the most that was emitted while nobody measured; None where a slot has no intensity.

    Args:
        energy: rows of one run.
        emissions: its rows of both scenarios.
    """
    dearest: dict[object, int] = {}
    for row in emissions:
        if row.g_milli_per_kwh is not None:
            rate = row.g_milli_per_kwh * row.pue_milli
            dearest[row.slot_start] = max(dearest.get(row.slot_start, 0), rate)
    most_ug = 0
    for each in energy:
        if each.upper_mj:
            if each.slot_start not in dearest:
                return None
            most_ug += price_ug(each.upper_mj, dearest[each.slot_start], 1)
        elif each.energy_mj is None and each.unobserved_ms:
            return None
    return most_ug


def _reference(
    rows: Sequence[EmissionRow], tokens: int, before: Earlier
) -> tuple[int | None, bool]:
    """Give the baseline's micrograms at as many tokens, and whether it has got there."""
    if before.tokens > tokens or not (rows or before.tokens):
        return None, False
    slots = [Slot(tokens=row.tokens, carbon_ug=row.carbon_ug) for row in rows]
    carbon_ug, reached = grams_at(slots, tokens - before.tokens)
    return (None if carbon_ug is None else before.reference_ug + carbon_ug), reached
