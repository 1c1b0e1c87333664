"""What a run would have emitted with one PUE, for savings whose slots have several. Pure.

A PUE changes with better knowledge, or with the boundary. The run did nothing for that, so it must
not count as saved. Invariant: what was spent is not rewritten; only the comparison is repeated.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from wattmesh.controller.accounting.unclaimed import Unclaimed
from wattmesh.controller.journal.energy.scenario_slots import ScenarioSlot
from wattmesh.telemetry.energy.ledger import Span


def pues(slots: Iterable[ScenarioSlot], beyond: Iterable[Unclaimed]) -> tuple[int, ...]:
    """Give every PUE that any grams were priced with, in thousandths, ascending."""
    own = {each.pue_milli for slot in slots for each in slot.by_pue}
    return tuple(sorted(own | {each.pue_milli for each in beyond if each.carbon_ug}))


def slots_at(slots: Iterable[ScenarioSlot], pue_milli: int) -> tuple[ScenarioSlot, ...]:
    """Give slots with the grams they would have with this PUE; unpriced ones stay so."""
    return tuple(_slot_at(slot, pue_milli) for slot in slots)


def unclaimed_at(beyond: Mapping[Span, Unclaimed], pue_milli: int) -> Mapping[Span, Unclaimed]:
    """Give joules booked to nobody with the grams they would have with this PUE."""
    return {slot: _unclaimed_at(each, pue_milli) for slot, each in beyond.items()}


def _slot_at(slot: ScenarioSlot, pue_milli: int) -> ScenarioSlot:
    carbon_ug = sum(_ug_at(each.carbon_ug, each.pue_milli, pue_milli) for each in slot.by_pue)
    upper_ug = sum(_ug_at(each.upper_ug, each.pue_milli, pue_milli) for each in slot.by_pue)
    return replace(
        slot,
        carbon_ug=None if slot.carbon_ug is None else carbon_ug,
        upper_ug=None if slot.upper_ug is None else upper_ug,
        spread_ug=sum(_ug_at(each.spread_ug, each.pue_milli, pue_milli) for each in slot.by_pue),
        rate=max((each.rate // each.pue_milli * pue_milli for each in slot.by_pue), default=0),
    )


def _unclaimed_at(each: Unclaimed, pue_milli: int) -> Unclaimed:
    if each.carbon_ug is None:
        return each
    carbon_ug = _ug_at(each.carbon_ug, each.pue_milli, pue_milli)
    return replace(each, carbon_ug=carbon_ug, pue_milli=pue_milli)


def _ug_at(carbon_ug: int, of_milli: int, pue_milli: int) -> int:
    """Convert micrograms from one PUE to another, rounding half up."""
    return (2 * carbon_ug * pue_milli + of_milli) // (2 * of_milli)
