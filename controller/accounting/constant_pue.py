"""What a run emitted, had one PUE held all the time: for savings whose slots have several. Pure.

Another PUE is other knowledge, or another boundary: the run did nothing for it, so nothing may be
saved by it. Invariant: what was spent is not rewritten; only the comparison is made once more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from wattmesh.controller.accounting.unclaimed import Unclaimed
from wattmesh.controller.journal.energy.scenario_slots import ScenarioSlot
from wattmesh.telemetry.energy.ledger import Span


def pues(slots: Iterable[ScenarioSlot], beyond: Iterable[Unclaimed]) -> tuple[int, ...]:
    """Give every PUE that any grams were priced with, in thousandths, in order."""
    own = {each.pue_milli for slot in slots for each in slot.by_pue}
    return tuple(sorted(own | {each.pue_milli for each in beyond if each.carbon_ug}))


def slots_at(slots: Iterable[ScenarioSlot], pue_milli: int) -> tuple[ScenarioSlot, ...]:
    """Give slots with the grams that they had with this PUE; what has no price keeps none."""
    return tuple(_slot_at(slot, pue_milli) for slot in slots)


def unclaimed_at(beyond: Mapping[Span, Unclaimed], pue_milli: int) -> Mapping[Span, Unclaimed]:
    """Give what nobody was charged for with the grams that it had with this PUE."""
    return {slot: _unclaimed_at(each, pue_milli) for slot, each in beyond.items()}


def _slot_at(slot: ScenarioSlot, pue_milli: int) -> ScenarioSlot:
    """Give one slot."""
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
    """Give one slot's."""
    if each.carbon_ug is None:
        return each
    carbon_ug = _ug_at(each.carbon_ug, each.pue_milli, pue_milli)
    return replace(each, carbon_ug=carbon_ug, pue_milli=pue_milli)


def _ug_at(carbon_ug: int, of_milli: int, pue_milli: int) -> int:
    """Give micrograms of one PUE as they were with another, half up."""
    return (2 * carbon_ug * pue_milli + of_milli) // (2 * of_milli)
