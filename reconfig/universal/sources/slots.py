"""What shapes an optimizer's slots have, and that no parameter lacks one.

Factored slots, of a parameter of shape (..., m, n):

    row_var, col_var     torch's Adafactor: (..., m, 1) and (..., 1, n)
    <x>_row, <x>_col     transformers' Adafactor: (..., m) and (..., n)

Invariant: a parameter that lost one of its slots is never mistaken for one that never had it. One
without any slot is: no writer tells the two apart, so whoever reads says its name.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.index.box import Shape
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.rules import Replicate, Rule

COUNTERS = frozenset({"step"})
"""Slots that most optimizers have, so sharing them does not mean the same optimizer."""


ROW_VAR, COL_VAR, WHOLE_VAR = "row_var", "col_var", "variance"
ROW, COL = "_row", "_col"


def fits(slot: str, shape: Shape, parameter: Shape) -> bool:
    """Tell whether a slot of that name and shape can belong to a parameter of a shape."""
    if shape == parameter or math.prod(shape) == 1:
        return True
    return len(parameter) > 1 and shape == _factor(slot, parameter)


def rule(slot: str, shape: Shape, parameter: Shape | None, of_parameter: Rule) -> Rule:
    """The layout rule of a slot: its parameter's, where it has the rule's dim."""
    if parameter is None:
        return Replicate()
    if shape == parameter:
        return of_parameter
    last = len(parameter) - 1
    if last < 1 or shape != _factor(slot, parameter):
        return Replicate()
    lost = last if slot == ROW_VAR or slot.endswith(ROW) else last - 1
    if of_parameter.dim == lost:
        return Replicate()
    moved = len(shape) < len(parameter) and of_parameter.dim > lost
    return replace(of_parameter, dim=of_parameter.dim - 1) if moved else of_parameter


def _factor(slot: str, parameter: Shape) -> Shape | None:
    """Shape of a factored slot of a parameter of two dims or more."""
    if slot == ROW_VAR:
        return (*parameter[:-1], 1)
    if slot == COL_VAR:
        return (*parameter[:-2], 1, parameter[-1])
    if slot.endswith(ROW):
        return parameter[:-1]
    return (*parameter[:-2], parameter[-1]) if slot.endswith(COL) else None


def _unfactored(slots: Collection[str]) -> frozenset[str]:
    """Names of slots with the two factors of one as that one."""
    names = set(slots)
    for name in slots:
        other = COL_VAR if name == ROW_VAR else f"{name.removesuffix(ROW)}{COL}"
        if (name == ROW_VAR or name.endswith(ROW)) and other in names:
            names -= {name, other}
            names.add(WHOLE_VAR if name == ROW_VAR else name.removesuffix(ROW))
    return frozenset(names)


def check(
    slots: Mapping[str, Collection[str]], optimized: Collection[str], declared: Declared
) -> tuple[str, ...]:
    """Refuse parameters with fewer slots than the optimizer gives others.

    Args:
        slots: parameter -> its slots, maybe none.
        optimized: parameters in an optimizer's groups.
        declared: may declare the correct slots of a parameter.

    Returns:
        The parameters in groups that have no slot at all while others have: they never had a
        gradient.

    Raises:
        InputInvalid: a parameter lacks slots; the message names it.
    """
    kinds = {frozenset(each) for each in slots.values() if each}
    kinds |= {each | {ROW_VAR, COL_VAR} for each in kinds if each & {ROW_VAR, COL_VAR}}
    unfactored = {_unfactored(each) for each in kinds}
    without: list[str] = []
    for name in sorted({*slots, *optimized}):
        mine = frozenset(slots.get(name, ()))
        expected = declared.states(name)
        if expected is not None:
            if mine != expected:
                raise InputInvalid(
                    f"{name} has the optimizer slots {_listed(mine)}; declared are "
                    f"{_listed(expected)}."
                )
        elif not mine:
            without += [name] if kinds and name in optimized else []
        elif larger := _smallest_superset(mine, kinds):
            raise InputInvalid(
                f"{name} lacks the optimizer slots {_listed(larger - mine)} that other parameters "
                "have; the checkpoint is incomplete. If that is correct, declare it in [[slots]]."
            )
        elif other := _crossing(_unfactored(mine), unfactored):
            raise InputInvalid(
                f"{name} has the optimizer slots {_listed(mine)}, other parameters have "
                f"{_listed(other)}; one of them was renamed or lost. If that is correct, declare "
                "it in [[slots]]."
            )
    return tuple(without)


def in_words(without: Sequence[str]) -> str:
    """The end of a description that says which parameters have no slots; "" for none."""
    if not without:
        return ""
    return f"; {len(without)} of its parameters have no optimizer state, as {without[0]}"


def _smallest_superset(mine: frozenset[str], kinds: Collection[frozenset[str]]) -> frozenset[str]:
    return min((each for each in kinds if mine < each), key=len, default=frozenset())


def _crossing(mine: frozenset[str], kinds: Collection[frozenset[str]]) -> frozenset[str] | None:
    """A set that shares slots with `mine` (counters excepted) while each has others."""
    return next(
        (each for each in kinds if (mine & each) - COUNTERS and mine - each and each - mine), None
    )


def _listed(slots: frozenset[str]) -> str:
    return ", ".join(sorted(slots)) or "none"
