"""Which optimizer slots each parameter has, and whether one of them is missing.

Invariant: a parameter that lost a slot is never taken for one that never had it.
"""

from collections.abc import Collection, Mapping

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.index.declared import Declared

COUNTERS = frozenset({"step"})
"""Slots that optimizers of every kind have, so that sharing them says nothing."""


def check(
    slots: Mapping[str, Collection[str]], optimized: Collection[str], declared: Declared
) -> None:
    """Refuse parameters with fewer slots than the optimizer gives others.

    Args:
        slots: parameter -> its slots; none for a parameter without.
        optimized: parameters that an optimizer's groups name.
        declared: may say which slots a parameter rightly has.

    Raises:
        InputInvalid: a parameter lacks slots; it is named.
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
        elif (larger := _larger(mine, kinds)) and (mine or name in optimized):
            raise InputInvalid(
                f"{name} lacks the optimizer slots {_listed(larger - mine)} that other parameters "
                "have; the checkpoint is incomplete. If it is right so, declare it in [[slots]]."
            )
        elif other := _crossing(mine, kinds):
            raise InputInvalid(
                f"{name} has the optimizer slots {_listed(mine)}, other parameters have "
                f"{_listed(other)}; one of them was renamed or lost. If it is right so, declare "
                "it in [[slots]]."
            )


def _larger(mine: frozenset[str], kinds: Collection[frozenset[str]]) -> frozenset[str]:
    """The smallest set of slots that contains `mine` and more."""
    return min((each for each in kinds if mine < each), key=len, default=frozenset())


def _crossing(mine: frozenset[str], kinds: Collection[frozenset[str]]) -> frozenset[str] | None:
    """Slots that share some with `mine`, where each has one more; counters apart."""
    return next(
        (each for each in kinds if (mine & each) - COUNTERS and mine - each and each - mine), None
    )


def _listed(slots: frozenset[str]) -> str:
    return ", ".join(sorted(slots)) or "none"
