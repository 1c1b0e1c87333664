"""Finds the prefixes of a DCP folder's keys, and proves them.

    <model prefix><parameter>                       a tensor
    <optim prefix>state.<parameter>.<slot>          a tensor of its shape, or one number
    <optim prefix>param_groups.<parameter>.<setting>

Invariant: prefixes are accepted only if every key of the optimizer belongs to an existing
parameter; a key never counts as a slot or parameter only because of its form.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.index.box import Shape
from wattmesh.reconfig.universal.index.names import AVERAGE, HOOK, Names

_STATE, _GROUPS = "state.", "param_groups."
_WORDS = re.compile(r"(?:^|(?<=\.))(?:state|param_groups)\.")
_SAMPLES = 50
MOST_IN_ONE = 8
MOST_PREFIXES = 64
MOST_PAIRS = 256
"""Most candidate prefixes: in one key; of the optimizer; of the model, for each of the
optimizer's."""

ALONE = Names("", HOOK.optim)
"""For a folder without an optimizer: no prefix can be proven, so names stay as they are."""


def find(
    shapes: Mapping[str, Shape], values: Collection[str], where: str, allowance: Allowance
) -> Names:
    """Find the prefixes.

    Args:
        shapes: of the tensors, by key.
        values: keys of values that are not tensors.
        where: the source's name in errors.
        allowance: is charged for every pair of prefixes.

    Raises:
        InputInvalid: no prefixes, or more than one pair of them, fit every key of the optimizer.
    """
    keys = [*shapes, *values]
    pairs: set[Names] = set()
    for optim in _optim_prefixes(keys):
        allowance.look(where)
        pairs.update(itertools.islice(_pairs(optim, shapes, keys), MOST_PAIRS))
    if not pairs:
        _refuse_lonely_slots(keys, where)
        return ALONE
    wrong: dict[Names, str | None] = {}
    for names in pairs:
        allowance.look(where)
        wrong[names] = _first_wrong(names, shapes, values)
    good = [names for names, key in wrong.items() if key is None]
    # Averages have the parameters' names and shapes; they count as the model only without another.
    good = [names for names in good if not names.model.startswith(AVERAGE)] or good
    if len(good) == 1:
        return good[0]
    if good:
        raise InputInvalid(
            f"{where}: its keys fit several prefixes, {good[0]} and {good[1]}; say which."
        )
    nearest = min(wrong, key=lambda names: (-_fits(names, shapes), str(names)))
    raise InputInvalid(_sentence(where, nearest, str(wrong[nearest])))


def prove(names: Names, shapes: Mapping[str, Shape], values: Collection[str], where: str) -> None:
    """Check given prefixes against the keys.

    Raises:
        InputInvalid: a key of the optimizer has no parameter; the message names it.
    """
    key = _first_wrong(names, shapes, values)
    if key is not None:
        raise InputInvalid(_sentence(where, names, key))


def setting_of(names: Names, key: str) -> tuple[str, str] | None:
    """(parameter, setting) of a value's key; None for other keys."""
    prefix = f"{names.optim}{_GROUPS}"
    name, _, setting = key.removeprefix(prefix).rpartition(".")
    return (name, setting) if key.startswith(prefix) and name else None


def slot_of(names: Names, key: str) -> tuple[str, str] | None:
    """(parameter, slot) of a tensor's or value's key; None for other keys."""
    prefix = f"{names.optim}{_STATE}"
    name, _, slot = key.removeprefix(prefix).rpartition(".")
    return (name, slot) if key.startswith(prefix) and name else None


def _sentence(where: str, names: Names, key: str) -> str:
    return (
        f"{where}: {key!r} is no slot or setting of a parameter: no parameter has its name and "
        f"shape (model prefix {names.model!r}, optimizer prefix {names.optim!r})."
    )


def _refuse_lonely_slots(keys: Collection[str], where: str) -> None:
    """Refuse slots in a folder without any parameter for them."""
    for key in keys:
        if any(key.startswith((f"{each}{_STATE}",)) for each in ("optim.", "optimizer.")):
            raise InputInvalid(f"{where}: {key!r} is a slot of a parameter that does not exist.")


def _optim_prefixes(keys: Collection[str]) -> list[str]:
    """The most frequent texts before `state.` or `param_groups.`, at most MOST_PREFIXES.

    A parameter's name may contain these words too ("layers.3.state.weight"), but such a prefix is
    rarer than the optimizer's, which all its keys have.
    """
    found: Counter[str] = Counter()
    for key in keys:
        mine = (each.start() for each in _WORDS.finditer(key))
        found.update({key[:at] for at in itertools.islice(mine, MOST_IN_ONE)})
    return [prefix for prefix, _ in found.most_common(MOST_PREFIXES)]


def _pairs(optim: str, shapes: Mapping[str, Shape], keys: Collection[str]) -> Iterator[Names]:
    """Yield prefixes with which some key of the optimizer has its parameter."""
    names = Names("", optim)
    mine = [slot_of(names, key) or setting_of(names, key) for key in keys]
    for found in [each for each in mine if each][:_SAMPLES]:
        for key in shapes:
            ends = key.endswith(found[0]) and key[: -len(found[0])][-1:] in ("", ".")
            if ends and slot_of(names, key) is None:
                yield Names(key[: -len(found[0])], optim)


def _first_wrong(names: Names, shapes: Mapping[str, Shape], values: Collection[str]) -> str | None:
    """The first key of the optimizer that has no parameter; None when all have."""
    for key, shape in shapes.items():
        if key.startswith(f"{names.optim}{_STATE}"):
            slot = slot_of(names, key)
            if slot is None or not _is_slot(shape, shapes.get(f"{names.model}{slot[0]}")):
                return key
    for key in values:
        named = slot_of(names, key) or setting_of(names, key)
        known = named is None or f"{names.model}{named[0]}" in shapes
        if not known and not in_numbered_group(names, key, values):
            return key
    return None


def in_numbered_group(names: Names, key: str, values: Collection[str]) -> bool:
    """Tell whether it is a setting of a numbered group, which lists its parameters."""
    group, _, setting = after_groups(names, key).partition(".")
    mine = key.startswith(f"{names.optim}{_GROUPS}") and group.isdecimal()
    return mine and bool(setting) and f"{names.optim}{_GROUPS}{group}.params" in values


def _is_slot(shape: Shape, parameter: Shape | None) -> bool:
    return parameter is not None and (shape == parameter or math.prod(shape) == 1)


def _fits(names: Names, shapes: Mapping[str, Shape]) -> int:
    """Number of tensors that fit."""
    slots = (slot_of(names, key) for key in shapes)
    return sum(slot is not None and f"{names.model}{slot[0]}" in shapes for slot in slots)


def after_groups(names: Names, key: str) -> str:
    """Return the rest of a key after `param_groups.`."""
    return key.removeprefix(f"{names.optim}{_GROUPS}")
