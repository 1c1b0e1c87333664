"""Joules that were spread over several slots by time: it is not known in which they were drawn.

A meter that was not read for an hour, or an agent that did not know the slots, delivers joules of a
longer time. Of the slots these cover, those in which a scenario is the run itself cancel; in the
others the run may have drawn all of the joules, at the highest price, or none. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from wattmesh.policies.accounting.baseline import Slot, price_ug


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpread:
    """What was spread over a slot. `rates`: its prices, in mg/kWh x PUE x 1000."""

    energy_mj: int = 0
    carbon_ug: int = 0
    rates: tuple[int, ...] = ()


def bounded(slots: Sequence[Slot], laid: Sequence[SlotSpread]) -> list[Slot]:
    """Bound what the run emitted in slots with spread joules; neighbouring slots count together.

    Args:
        slots: of a scenario, paired with the run's, in time order.
        laid: what was spread over each of them.
    """
    found = list(slots)
    together = groupby(range(len(found)), key=lambda number: laid[number].energy_mj > 0)
    for is_laid, numbers in together:
        every = list(numbers)
        others = [number for number in every if not found[number].as_run]
        if not (is_laid and others):
            continue
        energy_mj = sum(laid[number].energy_mj for number in every)
        rates = [rate for number in others for rate in laid[number].rates]
        least_ug = price_ug(energy_mj, min(rates), 1) if len(others) == len(every) else 0
        most_ug = price_ug(energy_mj, max(rates), 1)
        for number in every:
            own = found[number].as_run
            found[number] = _changed(
                found[number], 0 if own else -laid[number].carbon_ug, most_ug if own else 0
            )
        found[others[0]] = _changed(found[others[0]], least_ug, most_ug - least_ug)
    return found


def _changed(slot: Slot, own_ug: int, own_upper_ug: int) -> Slot:
    """Add to what a run emitted in a slot; an unpriced amount stays None."""
    return replace(
        slot,
        own_ug=None if slot.own_ug is None else slot.own_ug + own_ug,
        own_upper_ug=None if slot.own_upper_ug is None else slot.own_upper_ug + own_upper_ug,
    )
