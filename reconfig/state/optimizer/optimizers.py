"""State of any number of optimizers, by the global names of their parameters.

    optim.state.<parameter>.<slot>              a tensor, or a plain number
    optim.param_groups.<parameter>.<setting>    lr, betas, weight_decay ...
    optim.param_groups.<parameter>.own:<key>    other state of the optimizer, by its own key

A parameter keeps its settings, whatever group of whatever optimizer `build` puts it into.

Invariant: a trainable parameter is updated by exactly one optimizer, and every slot belongs to a
parameter: it has the parameter's shape and sharding, or is one number.
"""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.launch.in_step import words
from wattmesh.reconfig.state.names import parameters_of
from wattmesh.reconfig.state.plain import encode
from wattmesh.reconfig.state.state import State

PARAMS = "params"


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The state of one rank's optimizers.

    Attributes:
        tensors, plain: slots and settings by global name.
        slots: names of each parameter's slots; empty while it has none.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    slots: dict[str, list[str]] = field(default_factory=dict)


def names_of(state: State) -> dict[torch.Tensor, str]:
    """Name every parameter of this rank; of two names the first counts.

    Raises:
        InputInvalid: a trainable parameter is in no optimizer or in two, or an optimizer updates
            one that no module has.
    """
    names: dict[torch.Tensor, str] = {}
    for module in state.modules:
        for name, each in parameters_of(module).items():
            names.setdefault(each, name)
    held: dict[torch.Tensor, int] = {}
    for number, optimizer in enumerate(state.optimizers):
        for group in optimizer.param_groups:
            for parameter in group[PARAMS]:
                if parameter not in names:
                    raise InputInvalid(
                        f"checkpoint: optimizer {number} ({_kind(optimizer)}) updates a parameter "
                        f"of shape {tuple(parameter.shape)} that no module in State.modules has; "
                        "list its module there."
                    )
                if held.setdefault(parameter, number) != number:
                    raise InputInvalid(
                        f"checkpoint: {names[parameter]!r} is in optimizers {held[parameter]} and "
                        f"{number}; each would update it. Keep it in one of them."
                    )
    for parameter, name in names.items():
        if parameter.requires_grad and parameter not in held:
            raise InputInvalid(
                f"checkpoint: {name!r} is trainable but in no parameter group of any optimizer; "
                "add it there or freeze it with requires_grad_(False)."
            )
    return names


def present_state(state: State) -> OptimizerState:
    """Name the present state of the optimizers, without creating any.

    Raises:
        InputInvalid: see `names_of`; or a slot cannot be moved.
    """
    names, found = names_of(state), OptimizerState()
    for optimizer in state.optimizers:
        told = _state_of(optimizer)
        left = dict(told["state"])
        own = _own_of(optimizer, told)
        for group, as_told in zip(optimizer.param_groups, told["param_groups"], strict=True):
            settings = {key: _plain(value) for key, value in as_told.items() if key != PARAMS}
            for parameter, number in zip(group[PARAMS], as_told[PARAMS], strict=True):
                name = names[parameter]
                for setting, value in {**settings, **own}.items():
                    found.plain[_setting(name, setting)] = value
                mine = found.slots.setdefault(name, [])
                for key, value in flat(f"optim.state.{name}", left.pop(number, {})):
                    check_slot(key, value, parameter)
                    (found.tensors if isinstance(value, torch.Tensor) else found.plain)[key] = value
                    mine.append(key)
        if left:
            raise InputInvalid(
                f"checkpoint: {_kind(optimizer)} keeps {next(iter(left))!r} in its state, which "
                "belongs to no parameter; keep it in State.extra."
            )
    return found


def settings_of(state: State) -> dict[str, Any]:
    """Return every parameter's present settings, by global name."""
    names = names_of(state)
    return {
        _setting(names[parameter], setting): _plain(value)
        for optimizer in state.optimizers
        for group in optimizer.param_groups
        for parameter in group[PARAMS]
        for setting, value in group.items()
        if setting != PARAMS
    }


def owner_of(key: str, names: Container[str]) -> str:
    """Return the parameter among `names` that owns a value; the key itself if there is none."""
    for head in ("optim.param_groups.", "optim.state."):
        if key.startswith(head):
            name = key[len(head) :]
            while name and name not in names:
                name = name.rpartition(".")[0]
            return f"optim.param_groups.{name}" if name else key
    return key


def begin(state: State) -> None:
    """Create the slots of new optimizers by a step with zero gradients and learning rate 0.

    For freshly built states before a load: parameters do not change, step counters do. Step hooks
    are not called, because the step trains nothing.

    Raises:
        InputInvalid: an optimizer cannot do such a step.
    """
    for optimizer in state.optimizers:
        parameters = [each for group in optimizer.param_groups for each in group[PARAMS]]
        # Existing gradients mean that training has begun.
        if optimizer.state or any(each.grad is not None for each in parameters):
            continue
        rates = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
        try:
            for each in parameters:
                each.grad = torch.zeros_like(each) if each.requires_grad else None
            for group, rate in rates:
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
            with without_hooks(optimizer):
                optimizer.step()
        except (TypeError, RuntimeError) as error:
            raise InputInvalid(
                f"checkpoint: {_kind(optimizer)} cannot make its slots by a step with zero "
                f"gradients ({error}), so a checkpoint of it cannot be loaded."
            ) from error
        finally:
            for group, rate in rates:
                group["lr"] = rate
            for each in parameters:
                each.grad = None


@contextmanager
def without_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Disable all step hooks, global ones and this optimizer's, within the block."""
    hooks = torch_compat.step_hooks(optimizer)
    before = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        yield
    finally:
        for each, hooked in zip(hooks, before, strict=True):
            each.update(hooked)


def give_back(state: State, tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]) -> None:
    """Put loaded settings and slots into the present optimizers.

    Raises:
        InputInvalid: a group has parameters that were saved with different settings.
    """
    names = names_of(state)
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            mine = [names[each] for each in group[PARAMS]]
            for setting in [key for key in group if key != PARAMS and mine]:
                value = _one(setting, [(name, plain[_setting(name, setting)]) for name in mine])
                group[setting] = _refilled(group[setting], value)
        everything = {**tensors, **plain}
        if _hears_of_loads(optimizer) or not _in_place(optimizer, names, tensors):
            optimizer.load_state_dict(_told(optimizer, names, everything))
            continue
        for parameter, slots in optimizer.state.items():
            _fill_plain(f"optim.state.{names[parameter]}", slots, plain)


def drop(state: State, names: Container[str]) -> None:
    """Remove the slots of some parameters, as if their optimizer had never updated them."""
    for parameter, name in names_of(state).items():
        if name in names:
            for optimizer in state.optimizers:
                optimizer.state.pop(parameter, None)


def _setting(name: str, setting: str) -> str:
    return f"optim.param_groups.{name}.{setting}"


def _state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's state_dict.

    Raises:
        InputInvalid: it raised.
    """
    try:
        return optimizer.state_dict()
    except Exception as error:
        raise InputInvalid(
            f"checkpoint: {_kind(optimizer)} cannot give its state ({words(error)}); use an "
            "optimizer whose state_dict gives what this rank keeps, at any step."
        ) from error


def _kind(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__name__


def _plain(value: Any) -> Any:
    """A setting as it is saved: a number, even if the optimizer has it as a tensor."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, list | tuple):
        return type(value)(_plain(each) for each in value)
    return value


def _refilled(old: Any, value: Any) -> Any:
    """A loaded setting in the optimizer's form: a tensor is filled, as captured graphs read it."""
    if isinstance(old, torch.Tensor) and old.numel() == 1:
        return old.detach().fill_(value) if old.requires_grad else old.fill_(value)
    if isinstance(old, list | tuple) and isinstance(value, list | tuple) and len(old) == len(value):
        return type(old)(_refilled(a, b) for a, b in zip(old, value, strict=True))
    return value


def _one(setting: str, told: list[tuple[str, Any]]) -> Any:
    """The value that all parameters of a group were saved with."""
    (first, value), *others = told
    for name, other in others:
        if other != value:
            raise InputInvalid(
                f"checkpoint: build puts {first!r} and {name!r} into one parameter group, but they "
                f"were saved with {setting} {value!r} and {other!r}; give them groups of their own."
            )
    return value


def flat(head: str, slots: Any) -> Iterator[tuple[str, Any]]:
    """Yield slots, nested ones under names with dots."""
    for slot, value in slots.items():
        if isinstance(value, dict):
            yield from flat(f"{head}.{slot}", value)
        elif value is not None:
            yield f"{head}.{slot}", value


def check_slot(key: str, value: Any, parameter: torch.Tensor) -> None:
    """Refuse a slot whose sharding in another layout is not known."""
    if not isinstance(value, torch.Tensor):
        if not isinstance(value, int | float):
            raise InputInvalid(
                f"checkpoint: {key!r} is a {type(value).__name__}, and an optimizer's slots are "
                "stored as tensors and numbers only; use an optimizer with such slots."
            )
        return
    if value.layout is not torch.strided:
        raise InputInvalid(f"checkpoint: {key!r} is sparse; use an optimizer with dense slots.")
    if value.numel() == 1:
        return
    if value.shape != parameter.shape:
        raise InputInvalid(
            f"checkpoint: {key!r} is {tuple(value.shape)}, its parameter is "
            f"{tuple(parameter.shape)}: a slot of another shape cannot be sharded with it. Use an "
            "optimizer whose slots have the parameter's shape or are one number."
        )
    if isinstance(parameter, DTensor) and not isinstance(value, DTensor):
        raise InputInvalid(
            f"checkpoint: {key!r} is a plain tensor, its parameter is sharded "
            f"{list(parameter.placements)}; make it with torch.zeros_like(parameter)."
        )


def _hears_of_loads(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer does more in a load than copy its slots."""
    return bool(
        type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict
        or torch_compat.hears_of_loads(optimizer)
    )


def _in_place(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    tensors: Mapping[str, torch.Tensor],
) -> bool:
    """Tell whether the filled tensors are the optimizer's own slots."""
    return all(
        value is tensors.get(key)
        for parameter, slots in optimizer.state.items()
        for key, value in flat(f"optim.state.{names[parameter]}", slots)
        if isinstance(value, torch.Tensor)
    )


def _fill_plain(head: str, slots: Any, plain: Mapping[str, Any]) -> None:
    for slot, value in slots.items():
        key = f"{head}.{slot}"
        if isinstance(value, dict):
            _fill_plain(key, value, plain)
        elif key in plain:
            slots[slot] = plain[key]


def _told(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    everything: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the argument of the optimizer's `load_state_dict`."""
    told = _state_of(optimizer)
    numbers = {
        number: names[parameter]
        for group, as_told in zip(optimizer.param_groups, told["param_groups"], strict=True)
        for parameter, number in zip(group[PARAMS], as_told[PARAMS], strict=True)
    }
    slots = {
        number: _filled(f"optim.state.{numbers[number]}", mine, everything)
        for number, mine in told["state"].items()
    }
    held = numbers.values()
    own = {
        key: _refilled(
            told[key],
            _one(key, [(name, everything[_setting(name, f"{_OWN}{key}")]) for name in held]),
        )
        for key in told
        if key not in _TORCHS and held
    }
    return {**own, "state": slots, "param_groups": told["param_groups"]}


_OWN = "own:"
_TORCHS = ("state", "param_groups")


def _own_of(optimizer: torch.optim.Optimizer, told: Mapping[str, Any]) -> dict[str, Any]:
    """State of an optimizer under its own keys, besides slots and settings, in its saved form.

    Raises:
        InputInvalid: it is not plain, or the optimizer's load_state_dict would ignore it.
    """
    own = {f"{_OWN}{key}": _plain(value) for key, value in told.items() if key not in _TORCHS}
    if own and not _hears_of_loads(optimizer):
        raise InputInvalid(
            f"checkpoint: {_kind(optimizer)} keeps {next(iter(own)).removeprefix(_OWN)!r} in its "
            "state_dict, and its load_state_dict is torch's, which ignores it; give it "
            "a load_state_dict of its own."
        )
    for key, value in own.items():
        tensors: dict[str, torch.Tensor] = {}
        encode(value, f"{key.removeprefix(_OWN)!r} of {_kind(optimizer)}", tensors)
        if tensors:
            raise InputInvalid(
                f"checkpoint: {next(iter(tensors))} is a tensor that belongs to no parameter, so "
                "no other layout could shard it; keep it in the parameters' slots or in "
                "State.extra."
            )
    return own


def _filled(head: str, slots: Mapping[Any, Any], everything: Mapping[str, Any]) -> dict[Any, Any]:
    return {
        slot: _filled(f"{head}.{slot}", value, everything)
        if isinstance(value, dict)
        else everything.get(f"{head}.{slot}", value)
        for slot, value in slots.items()
    }
