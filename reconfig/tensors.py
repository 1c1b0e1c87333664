"""A rank's state as named tensors and plain values, under names that no layout changes.

    model.<parameter or buffer>                 optim.state.<parameter>.<slot>
    optim.param_groups.<parameter>.<setting>    (plain values, not tensors)
    average.<slot>.<parameter>

Invariant: two parts of a model never define the same name; that would lose one of them silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.boxes import Box, boxes_of
from wattmesh.reconfig.in_place import filled_in_place, give_settings
from wattmesh.reconfig.names import canonical
from wattmesh.reconfig.state import State
from wattmesh.reconfig.universal.names import AVERAGE

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(frozen=True)
class Named:
    """What one rank holds: tensors (DTensor where sharded) and plain values, by global name.

    `parts`: per model part, the names of its model entries and of its optimizer entries.
    """

    tensors: dict[str, torch.Tensor]
    plain: dict[str, Any]
    parts: list[tuple[list[str], list[str]]]

    @cached_property
    def boxes(self) -> dict[str, Box]:
        """Where this rank's pieces are, reckoned once.

        Raises:
            InputInvalid: a tensor that cannot be stored (partial, complex, oddly sharded).
        """
        return boxes_of(self.tensors)

    def drop(self, key: str) -> torch.Tensor | None:
        """Forget a name; gives its tensor, if it had one."""
        self.__dict__.pop("boxes", None)
        self.plain.pop(key, None)
        return self.tensors.pop(key, None)


def name_all(state: State) -> Named:
    """Name every tensor and value of a rank's model parts and optimizers.

    Raises:
        InputInvalid: two parts define one name, or a trainable parameter has no optimizer.
    """
    named = Named({}, {}, [])
    for module, optimizer in zip(state.modules, state.optimizers, strict=True):
        # First, for it also puts parameters back that a forward left gathered (FSDP).
        model = dict(get_model_state_dict(module))
        _need_optimizer(module, optimizer)
        optim = dict(get_optimizer_state_dict(module, optimizer, options=_FLAT))
        for prefix, values in (("model", model), ("optim", optim)):
            for key, value in values.items():
                _add(named, f"{prefix}.{key}", value)
        named.parts.append((list(model), list(optim)))
    named.tensors.update(_averages(state, named.tensors))
    return named


def name_model(state: State) -> dict[str, torch.Tensor]:
    """Name the tensors of the model parts alone, leaving the optimizers untouched."""
    model = {
        f"model.{key}": value
        for module in state.modules
        for key, value in get_model_state_dict(module).items()
        if isinstance(value, torch.Tensor)
    }
    return {**model, **_averages(state, model)}


def give_back(state: State, named: Named) -> None:
    """Put loaded tensors and values into the modules and optimizers they were named from."""
    everything: dict[str, Any] = {**named.tensors, **named.plain}
    for module, optimizer, (model, optim) in zip(
        state.modules, state.optimizers, named.parts, strict=True
    ):
        if filled_in_place(module, optimizer, named.tensors, named.plain):
            give_settings(module, optimizer, named.plain)
            continue
        set_model_state_dict(module, {key: everything[f"model.{key}"] for key in model})
        flat = {key: everything[f"optim.{key}"] for key in optim}
        set_optimizer_state_dict(module, optimizer, optim_state_dict=flat, options=_FLAT)


def without_slots(state: State, named: Named) -> list[str]:
    """Names of this rank's parameters whose optimizer has slots, but none for them.

    They never got a gradient (an unused branch), so the optimizer has not begun with them.
    """
    found = []
    for optimizer, (_, optim) in zip(state.optimizers, named.parts, strict=True):
        setting = next(key for key in optimizer.param_groups[0] if key != "params")
        head, tail = "param_groups.", f".{setting}"
        held = {key[len(head) : -len(tail)] for key in optim if _is_setting(key, head, tail)}
        slots = [key.removeprefix("state.").split(".") for key in optim if key[:6] == "state."]
        begun = {".".join(key[:end]) for key in slots for end in range(1, len(key))}
        if begun:
            found += sorted(held - begun)
    return found


def drop_slots(state: State, named: Named, names: Sequence[str]) -> None:
    """Take the slots of some parameters out of a freshly built state, as if never begun."""
    heads = tuple(f"state.{name}." for name in names)
    if not heads:
        return
    for optimizer, (_, optim) in zip(state.optimizers, named.parts, strict=True):
        gone = [key for key in optim if key.startswith(heads)]
        slots = {id(named.drop(f"optim.{key}")) for key in gone}
        for key in gone:
            optim.remove(key)
        for parameter, held in list(optimizer.state.items()):
            if any(id(slot) in slots for slot in held.values() if slot is not None):
                del optimizer.state[parameter]


def _averages(state: State, model: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name the averages; DCP loads into them in place.

    Raises:
        InputInvalid: an average of nothing on this rank, or of another shape or sharding.
    """
    named: dict[str, torch.Tensor] = {}
    for slot, averages in state.averages.items():
        if not slot or "." in slot:
            raise InputInvalid(f"checkpoint: an average is called {slot!r}; choose a plain word.")
        for told, average in averages.items():
            name = canonical(told)
            parameter = model.get(f"model.{name}")
            if parameter is None:
                raise InputInvalid(
                    f"checkpoint: the average {slot!r} names {name!r}, which is no parameter on "
                    "this rank; keep averages under the names of named_parameters()."
                )
            if _form(average) != _form(parameter):
                raise InputInvalid(
                    f"checkpoint: the average {slot!r} of {name!r} is {_form(average)}, the "
                    f"parameter is {_form(parameter)}; make it with torch.zeros_like(parameter)."
                )
            named[f"{AVERAGE}{slot}.{name}"] = average
    return named


def _form(tensor: torch.Tensor) -> str:
    """Shape and sharding, in words."""
    sharded = f" sharded {list(tensor.placements)}" if isinstance(tensor, DTensor) else ""
    return f"{tuple(tensor.shape)}{sharded}"


def _is_setting(key: str, head: str, tail: str) -> bool:
    return key.startswith(head) and key.endswith(tail)


def _add(named: Named, key: str, value: Any) -> None:
    if key in named.tensors or key in named.plain:
        raise InputInvalid(
            f"checkpoint: two parts of the model on this rank both define {key!r}; one would "
            "overwrite the other. Keep global layer numbers in the names of pipeline stages."
        )
    if isinstance(value, torch.Tensor):
        named.tensors[key] = value
    else:
        named.plain[key] = value


def _need_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a trainable parameter that no optimizer of its part updates."""
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in held:
            raise InputInvalid(
                f"checkpoint: {name!r} is trainable but in no parameter group of its part's "
                "optimizer; add it there or freeze it with requires_grad_(False)."
            )
