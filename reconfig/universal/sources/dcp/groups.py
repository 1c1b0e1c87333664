"""Decodes an optimizer's groups, and renames what is saved by number.

    <prefix>param_groups            a list of groups, each with its parameters: names, or numbers
    <prefix>param_groups.<N>.<setting>      the same, flattened; a setting may be a tensor
    <prefix>state.<N>.<slot>        of numbered parameters

A number has a name where the groups carry `param_names` (an optimizer made from
`named_parameters()`), or where a table [[numbered]] lists them. Nothing is taken from an order.

Invariant: afterwards every setting and slot is under its parameter's name.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER, Allowance
from wattmesh.reconfig.universal.archives.rebuild import brief
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import is_name
from wattmesh.reconfig.universal.sources.plain import NotPlain, characters

GROUPS = "param_groups"
_FLAT = re.compile(r"((?:.*\.)?)param_groups\.(\d{1,9})\.([^.]+)")
_SLOT = re.compile(r"(\d{1,9})\.(.+)")

Settings = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class OptimizerGroups:
    """One optimizer's groups.

    Attributes:
        settings: by parameter.
        names: of numbered parameters, by number; empty where they are saved by name.
        members: parameters by group.
    """

    settings: Settings
    names: Mapping[int, str]
    members: Sequence[Sequence[str]]


def take(
    values: dict[str, Any], declared: Declared, where: str, allowance: Allowance
) -> dict[str, OptimizerGroups]:
    """Remove the groups of every optimizer from plain values, and return them by prefix.

    Args:
        values: by FQN, as JSON; those of groups are removed.
        declared: may list the names of numbered parameters.
        where: the source's name in errors.
        allowance: is charged for the settings that parameters share.

    Raises:
        InputInvalid: a group does not name its parameters.
    """
    found: dict[str, OptimizerGroups] = {}
    for prefix, groups in _groups(values, where).items():
        params = [each for group in groups for each in _params(group, prefix, where)]
        numbered = any(type(each) is int for each in params)
        names = _names(prefix, groups, params, declared, where) if numbered else {}
        settings: Settings = {}
        members: list[list[str]] = []
        for group in groups:
            rest = {k: v for k, v in group.items() if k not in ("params", "param_names")}
            mine = _params(group, prefix, where)
            allowance.written(characters(rest) * len(mine), where)
            members.append([names[each] if type(each) is int else each for each in mine])
            for name in members[-1]:
                if name in settings:
                    raise InputInvalid(f"{where}: {name!r:.80} is in two groups of {prefix!r:.80}.")
                settings[name] = rest
        found[prefix] = OptimizerGroups(settings, names, members)
    _check_used(found, declared)
    return found


def by_parameter(
    key: str, optimizers: Mapping[str, OptimizerGroups], where: str, allowance: Allowance
) -> Sequence[str]:
    """Give a tensor's keys: of a group's setting (`lr` as a tensor) one for each parameter in it.

    Raises:
        InputInvalid: the allowance is used up; `where` names the source.
    """
    match = _FLAT.fullmatch(key)
    optimizer = None if match is None else optimizers.get(match[1])
    if match is None or optimizer is None or int(match[2]) >= len(optimizer.members):
        return (key,)
    mine = optimizer.members[int(match[2])]
    allowance.made(2 * CONTAINER * len(mine), where)
    return [f"{match[1]}{GROUPS}.{name}.{match[3]}" for name in mine]


def renamed(key: str, optimizers: Mapping[str, OptimizerGroups], where: str) -> str:
    """Replace the number in the key of a slot by its parameter's name.

    Raises:
        InputInvalid: no group has that number.
    """
    for prefix, optimizer in optimizers.items():
        if optimizer.names and key.startswith(f"{prefix}state."):
            match = _SLOT.fullmatch(key.removeprefix(f"{prefix}state."))
            name = None if match is None else optimizer.names.get(int(match[1]))
            if match is None or name is None:
                raise InputInvalid(f"{where}: {key!r:.80} is of a parameter that is in no group.")
            return f"{prefix}state.{name}.{match[2]}"
    return key


def _groups(values: dict[str, Any], where: str) -> dict[str, list[dict[str, Any]]]:
    """Remove all groups that list their parameters; by prefix."""
    found: dict[str, list[dict[str, Any]]] = {}
    flat: dict[str, dict[int, dict[str, Any]]] = {}
    for key in list(values):
        prefix = key.removesuffix(GROUPS)
        ours = prefix != key and prefix[-1:] in ("", ".")
        if ours and values[key] is NotPlain:
            raise InputInvalid(
                f"{where}: {key!r:.80} has settings that are neither plain data nor a tensor each, "
                "so which parameters it has is not known."
            )
        listed = ours and type(values[key]) is list
        if listed and all(type(each) is dict for each in values[key]):
            found[prefix] = values.pop(key)
        elif (match := _FLAT.fullmatch(key)) and f"{match[1]}{GROUPS}.{match[2]}.params" in values:
            flat.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = values[key]
    for prefix, groups in flat.items():
        for number, group in groups.items():
            for setting in group:
                del values[f"{prefix}{GROUPS}.{number}.{setting}"]
        found.setdefault(prefix, []).extend(groups[number] for number in sorted(groups))
    return found


def _params(group: Mapping[str, Any], prefix: str, where: str) -> list[Any]:
    params = group.get("params")
    kinds = set(map(type, params)) if type(params) is list else {None}
    if type(params) is not list or kinds not in (set(), {str}, {int}):
        raise InputInvalid(
            f"{where}: {prefix}{GROUPS} does not name its parameters; save the optimizer's state "
            "by name (get_optimizer_state_dict)."
        )
    return params


def _names(
    prefix: str, groups: list[dict[str, Any]], params: list[Any], declared: Declared, where: str
) -> dict[int, str]:
    """The names of numbered parameters."""
    if sorted(map(str, params)) != sorted(map(str, range(len(params)))):
        raise InputInvalid(
            f"{where}: the groups of {prefix!r:.80} do not number their parameters from 0 to "
            f"{len(params) - 1}, each once."
        )
    told = list(_told(groups))
    table = declared.numbered_names(prefix)
    if told and len(told) == len(params):
        names = dict(zip(params, told, strict=True))
    elif table is None:
        raise InputInvalid(
            f"{where}: the optimizer {prefix!r:.80} numbers its {len(params)} parameters and does "
            "not name them; list their names in a table [[numbered]] of --rules, or make the "
            "optimizer from model.named_parameters()."
        )
    elif len(table) != len(params):
        raise InputInvalid(
            f"{where}: [[numbered]] lists {len(table)} names, the optimizer {prefix!r:.80} numbers "
            f"{len(params)} parameters."
        )
    else:
        names = dict(enumerate(table))
    if len(set(names.values())) != len(names):
        raise InputInvalid(f"{where}: two parameters of {prefix!r:.80} have one name.")
    return names


def _told(groups: list[dict[str, Any]]) -> Iterator[str]:
    """The names that the groups carry beside the numbers."""
    for group in groups:
        names = group.get("param_names")
        if type(names) is list and len(names) == len(group["params"]) and all(map(is_name, names)):
            yield from names


def _check_used(found: Mapping[str, OptimizerGroups], declared: Declared) -> None:
    numbered = [prefix for prefix, each in found.items() if each.names]
    for each in declared.numbered:
        if each.optimizer not in (None, *numbered) or not numbered:
            raise InputInvalid(
                f"[[numbered]] for {brief(each.optimizer)}: no optimizer with that prefix numbers "
                "its parameters."
            )
