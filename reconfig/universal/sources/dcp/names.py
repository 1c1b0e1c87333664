"""Finds the prefixes of a folder's keys, and proves them.

    <model prefix><parameter>                       a tensor
    <optim prefix>state.<parameter>.<slot>          a tensor of its shape, one number, or a factor
    <optim prefix>param_groups.<parameter>.<setting>

Where they fit several models or optimizers the caller chooses; several optimizers that share the
parameters of one model among them are taken together.

Invariant: prefixes are accepted only if every key of the optimizer belongs to an existing
parameter; a key never counts as a slot or parameter only because of its form.
"""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.index.box import Shape
from wattmesh.reconfig.universal.index.names import AVERAGE, HOOK, Names
from wattmesh.reconfig.universal.sources import slots
from wattmesh.reconfig.universal.sources.source import NO_CHOICES, Choices

_STATE, _GROUPS = "state.", "param_groups."
_WORDS = re.compile(r"(?:^|(?<=\.))(?:state|param_groups)\.")
_SAMPLES = 50
_MOST_TOLD = 6
MOST_IN_ONE = 8
MOST_PREFIXES = 64
MOST_PAIRS = 256
"""Most candidate prefixes: in one key; of the optimizer; of the model, for each of the
optimizer's."""

ALONE = Names("", HOOK.optim)
"""For a folder without an optimizer: no prefix can be proven, so names stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingNames:
    """Prefixes that fit.

    Attributes:
        names: of the model, and of its optimizer or the first of several.
        more: prefixes of the model's other optimizers.
    """

    names: Names
    more: tuple[str, ...] = ()


def find(
    shapes: Mapping[str, Shape],
    values: Collection[str],
    where: str,
    allowance: Allowance,
    choices: Choices = NO_CHOICES,
) -> FittingNames:
    """Find the prefixes.

    Args:
        shapes: of the tensors, by key.
        values: keys of values that are not tensors.
        where: the source's name in errors.
        allowance: is charged for every pair of prefixes.
        choices: prefixes that the caller gives.

    Raises:
        InputInvalid: no prefixes, or more than one pair of them, fit every key of the optimizer.
    """
    keys = [*shapes, *values]
    pairs: set[Names] = set()
    for optim in _optim_prefixes(keys, choices):
        allowance.look(where)
        pairs.update(itertools.islice(_pairs(optim, shapes, keys, choices.model), MOST_PAIRS))
    if not pairs:
        _refuse_lonely_slots(keys, where)
        return FittingNames(names=_alone(keys, where, choices))
    wrong: dict[Names, str | None] = {}
    for names in pairs:
        allowance.look(where)
        wrong[names] = _first_wrong(names, shapes, values)
    good = [names for names, key in wrong.items() if key is None]
    # Averages have the parameters' names and shapes; they count as the model only without another.
    good = [names for names in good if not names.model.startswith(AVERAGE)] or good
    if not good:
        nearest = min(wrong, key=lambda names: (-_fits(names, shapes), str(names)))
        raise InputInvalid(_sentence(where, nearest, str(wrong[nearest])))
    return _only(sorted(good, key=str), keys, where)


def _only(good: Sequence[Names], keys: Collection[str], where: str) -> FittingNames:
    """The one pair that fits; or one model with several optimizers that share its parameters."""
    models = sorted({names.model for names in good})
    optims = sorted({names.optim for names in good})
    if len(models) > 1:
        raise InputInvalid(
            f"{where}: {len(models)} models fit its optimizer, {_quoted(models)}; say which by "
            f"--model {models[0]!r} (the others are carried beside it)."
        )
    if len(optims) > 1:
        seen: set[str] = set()
        for optim in optims:
            mine = {named[0] for key in keys if (named := setting_of(Names("", optim), key))}
            if not mine or mine & seen or (models[0] and optim.startswith(models[0])):
                raise InputInvalid(
                    f"{where}: {len(optims)} optimizers fit its model, {_quoted(optims)}; say "
                    f"which by --optimizer {optims[0]!r} (the others are carried beside it)."
                )
            seen |= mine
    return FittingNames(names=Names(models[0], optims[0]), more=tuple(optims[1:]))


def _alone(keys: Collection[str], where: str, choices: Choices) -> Names:
    """The names of a folder without an optimizer."""
    if choices.optim is not None:
        raise InputInvalid(f"{where}: it holds no optimizer {choices.optim!r:.80}.")
    if choices.model is None:
        return ALONE
    if not any(key.startswith(choices.model) for key in keys):
        raise InputInvalid(f"{where}: it holds no model {choices.model!r:.80}.")
    return Names(choices.model, HOOK.optim)


def _quoted(prefixes: Sequence[str]) -> str:
    return ", ".join(f"{each!r:.80}" for each in prefixes[:_MOST_TOLD])


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


def _optim_prefixes(keys: Collection[str], choices: Choices) -> list[str]:
    """The most frequent texts before `state.` or `param_groups.`, at most MOST_PREFIXES.

    A parameter's name may contain these words too ("layers.3.state.weight"), but such a prefix is
    rarer than the optimizer's, which all its keys have.
    """
    if choices.optim is not None:
        return [choices.optim]
    found: Counter[str] = Counter()
    for key in keys:
        mine = (each.start() for each in _WORDS.finditer(key))
        found.update({key[:at] for at in itertools.islice(mine, MOST_IN_ONE)})
    return [prefix for prefix, _ in found.most_common(MOST_PREFIXES)]


def _pairs(
    optim: str, shapes: Mapping[str, Shape], keys: Collection[str], model: str | None
) -> Iterator[Names]:
    """Yield prefixes with which some key of the optimizer has its parameter."""
    names = Names("", optim)
    mine = [slot_of(names, key) or setting_of(names, key) for key in keys]
    for found in [each for each in mine if each][:_SAMPLES]:
        if model is not None:
            yield Names(model, optim)
            return
        for key in shapes:
            ends = key.endswith(found[0]) and key[: -len(found[0])][-1:] in ("", ".")
            if ends and slot_of(names, key) is None:
                yield Names(key[: -len(found[0])], optim)


def _first_wrong(names: Names, shapes: Mapping[str, Shape], values: Collection[str]) -> str | None:
    """The first key of the optimizer that has no parameter; None when all have."""
    for key, shape in shapes.items():
        if key.startswith(f"{names.optim}{_STATE}"):
            slot = slot_of(names, key)
            parameter = None if slot is None else shapes.get(f"{names.model}{slot[0]}")
            if slot is None or parameter is None or not slots.fits(slot[1], shape, parameter):
                return key
    for key in values:
        named = slot_of(names, key) or setting_of(names, key)
        if named is not None and f"{names.model}{named[0]}" not in shapes:
            return key
    return None


def _fits(names: Names, shapes: Mapping[str, Shape]) -> int:
    slots = (slot_of(names, key) for key in shapes)
    return sum(slot is not None and f"{names.model}{slot[0]}" in shapes for slot in slots)
