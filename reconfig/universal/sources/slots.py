"""Checks that no parameter lacks an optimizer slot.

Invariant: a parameter that lost a slot is never mistaken for one that never had it.
"""

from collections.abc import Collection, Mapping

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.index.declared import Declared

COUNTERS = frozenset({"step"})
"""Slots that most optimizers have, so sharing them does not mean the same optimizer."""


def check(
    slots: Mapping[str, Collection[str]], optimized: Collection[str], declared: Declared
) -> None:
    """Refuse parameters with fewer slots than the optimizer gives others.

    Args:
        slots: parameter -> its slots, maybe none.
        optimized: parameters in an optimizer's groups.
        declared: may declare the correct slots of a parameter.

    Raises:
        InputInvalid: a parameter lacks slots; the message names it.
    """
    kinds = {frozenset(each) for each in slots.values() if each}
    for name in sorted({*slots, *optimized}):
        mine = frozenset(slots.get(name, ()))
        expected = declared.states(name)
        if expected is not None:
            if mine != expected:
                raise InputInvalid(
                    f"{name} has the optimizer slots {_listed(mine)}; declared are "
                    f"{_listed(expected)}."
                )
        elif (larger := _smallest_superset(mine, kinds)) and (mine or name in optimized):
            raise InputInvalid(
                f"{name} lacks the optimizer slots {_listed(larger - mine)} that other parameters "
                "have; the checkpoint is incomplete. If that is correct, declare it in [[slots]]."
            )
        elif other := _crossing(mine, kinds):
            raise InputInvalid(
                f"{name} has the optimizer slots {_listed(mine)}, other parameters have "
                f"{_listed(other)}; one of them was renamed or lost. If that is correct, declare "
                "it in [[slots]]."
            )


def _smallest_superset(mine: frozenset[str], kinds: Collection[frozenset[str]]) -> frozenset[str]:
    """The smallest set of slots that is a proper superset of `mine`."""
    return min((each for each in kinds if mine < each), key=len, default=frozenset())


def _crossing(mine: frozenset[str], kinds: Collection[frozenset[str]]) -> frozenset[str] | None:
    """A set that shares slots with `mine` (counters excepted) while each has others."""
    return next(
        (each for each in kinds if (mine & each) - COUNTERS and mine - each and each - mine), None
    )


def _listed(slots: frozenset[str]) -> str:
    return ", ".join(sorted(slots)) or "none"
