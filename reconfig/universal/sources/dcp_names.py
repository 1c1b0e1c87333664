"""Finding out which prefixes a DCP folder's keys have, and proving it.

    <model prefix><parameter>                       a tensor
    <optim prefix>state.<parameter>.<slot>          a tensor of its shape, or one number
    <optim prefix>param_groups.<parameter>.<setting>

Invariant: prefixes are accepted only when every key of the optimizer fits a parameter that is
there; nothing is taken for a slot or a parameter because it looks like one.
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
"""Prefixes that are tried: in one key, of the optimizer, and of the model for each of those."""

ALONE = Names("", HOOK.optim)
"""For a folder without any optimizer: nothing could be proven, so names stay whole."""


def find(
    shapes: Mapping[str, Shape], values: Collection[str], where: str, allowance: Allowance
) -> Names:
    """Find the prefixes.

    Args:
        shapes: of the tensors, by key.
        values: keys of what is no tensor.
        where: names the source in errors.
        allowance: pays for every pair that is tried.

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


def _optim_prefixes(keys: Collection[str]) -> list[str]:
    """What most keys have before `state.` or `param_groups.`, at most MOST_PREFIXES.

    A parameter's own name may hold these words too ("layers.3.state.weight"); such a prefix begins
    fewer keys than the optimizer's, which begins all of its.
    """
    found: Counter[str] = Counter()
    for key in keys:
        mine = (each.start() for each in _WORDS.finditer(key))
        found.update({key[:at] for at in itertools.islice(mine, MOST_IN_ONE)})
    return [prefix for prefix, _ in found.most_common(MOST_PREFIXES)]


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
