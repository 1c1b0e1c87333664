"""Finding out which prefixes a DCP folder's keys have, and proving it.

    <model prefix><parameter>                       a tensor
    <optim prefix>state.<parameter>.<slot>          a tensor of its shape, or one number
    <optim prefix>param_groups.<parameter>.<setting>

Invariant: prefixes are accepted only when every key of the optimizer fits a parameter that is
there; nothing is taken for a slot or a parameter because it looks like one.
"""

import math
from collections.abc import Collection, Iterator, Mapping

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.box import Shape
from wattmesh.reconfig.universal.names import AVERAGE, HOOK, Names

_STATE, _GROUPS = "state.", "param_groups."
_SAMPLES = 50

ALONE = Names("", HOOK.optim)
"""For a folder without any optimizer: nothing could be proven, so names stay whole."""


def find(shapes: Mapping[str, Shape], values: Collection[str], where: str) -> Names:
    """Find the prefixes.

    Args:
        shapes: of the tensors, by key.
        values: keys of what is no tensor.
        where: names the source in errors.

    Raises:
        InputInvalid: no prefixes, or more than one pair of them, fit every key of the optimizer.
    """
    keys = [*shapes, *values]
    pairs = {names for optim in _optim_prefixes(keys) for names in _pairs(optim, shapes, keys)}
    if not pairs:
        _refuse_lonely_slots(keys, where)
        return ALONE
    wrong = {names: _first_wrong(names, shapes, values) for names in pairs}
    good = [names for names, key in wrong.items() if key is None]
    # An average has its parameter's name and shape; beside a model it is not the model.
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
    """Hold given prefixes against the keys.

    Raises:
        InputInvalid: a key of the optimizer has no parameter; it is named.
    """
    key = _first_wrong(names, shapes, values)
    if key is not None:
        raise InputInvalid(_sentence(where, names, key))


def setting_of(names: Names, key: str) -> tuple[str, str] | None:
    """(parameter, setting) of a value's key; None when it is none."""
    prefix = f"{names.optim}{_GROUPS}"
    name, _, setting = key.removeprefix(prefix).rpartition(".")
    return (name, setting) if key.startswith(prefix) and name else None


def slot_of(names: Names, key: str) -> tuple[str, str] | None:
    """(parameter, slot) of a tensor's or value's key; None when it is none."""
    prefix = f"{names.optim}{_STATE}"
    name, _, slot = key.removeprefix(prefix).rpartition(".")
    return (name, slot) if key.startswith(prefix) and name else None


def _sentence(where: str, names: Names, key: str) -> str:
    return (
        f"{where}: {key!r} is no slot or setting of a parameter: there is none of its name and "
        f"shape (model prefix {names.model!r}, optimizer prefix {names.optim!r})."
    )


def _refuse_lonely_slots(keys: Collection[str], where: str) -> None:
    """Slots without any parameter are no checkpoint of a model."""
    for key in keys:
        if any(key.startswith((f"{each}{_STATE}",)) for each in ("optim.", "optimizer.")):
            raise InputInvalid(f"{where}: {key!r} is a slot of a parameter that is not there.")


def _optim_prefixes(keys: Collection[str]) -> set[str]:
    """Everything that stands before `state.` or `param_groups.`."""
    found: set[str] = set()
    for key in keys:
        for word in (_STATE, _GROUPS):
            at = key.find(word)
            while at >= 0:
                if at == 0 or key[at - 1] == ".":
                    found.add(key[:at])
                at = key.find(word, at + 1)
    return found


def _pairs(optim: str, shapes: Mapping[str, Shape], keys: Collection[str]) -> Iterator[Names]:
    """Prefixes under which some optimizer key has its parameter."""
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
    """Whether it is a setting of a group that lists its parameters, as optimizers have them."""
    group, _, setting = after_groups(names, key).partition(".")
    mine = key.startswith(f"{names.optim}{_GROUPS}") and group.isdecimal()
    return mine and bool(setting) and f"{names.optim}{_GROUPS}{group}.params" in values


def _is_slot(shape: Shape, parameter: Shape | None) -> bool:
    return parameter is not None and (shape == parameter or math.prod(shape) == 1)


def _fits(names: Names, shapes: Mapping[str, Shape]) -> int:
    """How many tensors fit."""
    slots = (slot_of(names, key) for key in shapes)
    return sum(slot is not None and f"{names.model}{slot[0]}" in shapes for slot in slots)


def after_groups(names: Names, key: str) -> str:
    """What follows `param_groups.` in a key."""
    return key.removeprefix(f"{names.optim}{_GROUPS}")
