"""Names a rank's tensors and plain values, independently of the layout.

    model.<parameter or buffer>                 optim.state.<parameter>.<slot>
    optim.param_groups.<parameter>.<setting>    (plain values, not tensors)
    average.<slot>.<parameter>

Invariant: two parts of a model never define the same name, because one of them would be lost.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.state import plain
from wattmesh.reconfig.state.aliased_load import filled_in_place
from wattmesh.reconfig.state.boxes import LocalBox, boxes_of
from wattmesh.reconfig.state.names import canonical
from wattmesh.reconfig.state.optimizer import optimizers
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.universal.index.names import AVERAGE

MODEL = "model."
SLOTS = "optim.state."


@dataclass(frozen=True)
class Named:
    """A rank's tensors (DTensor where sharded) and plain values, by global name.

    `models`: per module, the names of its entries. `slots`: per parameter in an optimizer, the
    names of its slots. `orders`: of tensors whose rows are placed experts, in what order they are.
    """

    tensors: dict[str, torch.Tensor]
    plain: dict[str, Any]
    models: list[list[str]]
    slots: dict[str, list[str]]
    orders: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def boxes(self) -> dict[str, LocalBox]:
        """The boxes of this rank's pieces, cached.

        Raises:
            InputInvalid: a tensor cannot be stored (partial, complex, unevenly sharded).
        """
        return boxes_of(self.tensors, self.orders)

    @property
    def values(self) -> dict[str, dict[str, Any]]:
        """The plain values as JSON, by their parameter.

        Raises:
            InputInvalid: a checkpoint cannot store a value; the message names it.
        """
        return by_owner(self.plain, self.slots)

    def drop(self, name: str) -> None:
        """Remove a parameter's slots."""
        self.__dict__.pop("boxes", None)
        for key in self.slots[name]:
            self.plain.pop(key, None)
            self.tensors.pop(key, None)
        self.slots[name] = []


def name_all(state: State) -> Named:
    """Name every present tensor and value of a rank's model parts and optimizers.

    Raises:
        InputInvalid: two parts define one name, or a value cannot be stored; the message names it.
    """
    named = Named({}, {}, [], {})
    for module in state.modules:
        # First, because it also reshards parameters that a forward left unsharded (FSDP).
        model = dict(get_model_state_dict(module))
        for key, value in model.items():
            _add(named, f"{MODEL}{key}", value)
        named.models.append(list(model))
    kept = optimizers.present_state(state)
    named.tensors.update(kept.tensors)
    named.plain.update(kept.plain)
    named.slots.update(kept.slots)
    named.tensors.update(_averages(state, named.tensors))
    named.orders.update(_orders(state, named.tensors))
    return named


def name_to_fill(state: State) -> Named:
    """Name the destination of a load; slots of new optimizers are created."""
    optimizers.begin(state)
    return name_all(state)


def model_boxes(state: State) -> dict[str, LocalBox]:
    """Return the boxes of the model parts and averages alone; optimizers do not change."""
    model = {
        f"{MODEL}{key}": value
        for module in state.modules
        for key, value in get_model_state_dict(module).items()
        if isinstance(value, torch.Tensor)
    }
    tensors = {**model, **_averages(state, model)}
    return boxes_of(tensors, _orders(state, tensors))


def by_owner(values: Mapping[str, Any], names: Container[str]) -> dict[str, dict[str, Any]]:
    """Encode plain values as JSON, grouped by the parameter among `names` that owns them.

    Raises:
        InputInvalid: a checkpoint cannot store a value; the message names it.
    """
    found: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        mine = found.setdefault(optimizers.owner_of(key, names), {})
        mine[key] = plain.encode(value, key, {})
    return found


def give_back(state: State, named: Named) -> None:
    """Put loaded tensors and values into their modules and optimizers."""
    everything: dict[str, Any] = {**named.tensors, **named.plain}
    for module, model in zip(state.modules, named.models, strict=True):
        if not filled_in_place(module, named.tensors):
            set_model_state_dict(module, {key: everything[f"{MODEL}{key}"] for key in model})
    optimizers.give_back(state, named.tensors, named.plain)


def without_slots(named: Named) -> list[str]:
    """Return the names of this rank's parameters without optimizer slots.

    They never got a gradient (an unused branch, a skipped step), or their optimizer has no slots.
    """
    return sorted(name for name, slots in named.slots.items() if not slots)


def drop_slots(state: State, named: Named, names: Sequence[str]) -> None:
    """Remove the slots of some parameters from a freshly built state."""
    mine = {name for name in names if named.slots.get(name)}
    for name in mine:
        named.drop(name)
    if mine:
        optimizers.drop(state, mine)


def _averages(state: State, model: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name the averages, which are loaded in place.

    Raises:
        InputInvalid: an average has no parameter on this rank, or another shape or sharding.
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
            found, wanted = _shape_and_sharding(average), _shape_and_sharding(parameter)
            if found != wanted:
                raise InputInvalid(
                    f"checkpoint: the average {slot!r} of {name!r} is {found}, the parameter is "
                    f"{wanted}; make it with torch.zeros_like(parameter)."
                )
            named[f"{AVERAGE}{slot}.{name}"] = average
    return named


def _orders(state: State, tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Find the tensors with a row for each expert, and the order of these rows."""
    if state.experts is None or not state.experts.placement:
        return {}
    of_parameter: dict[str, list[str]] = {name: [] for name in state.experts.layer_of}
    for key, tensor in tensors.items():
        owner = _owner_among(key, of_parameter)
        whole = tensors.get(f"{MODEL}{owner}")
        if whole is not None and tensor.shape == whole.shape:
            of_parameter[owner].append(key)
    return state.experts.orders(of_parameter)


def _owner_among(key: str, names: Container[str]) -> str:
    """Return the parameter among `names` whose optimizer slot or average this is; else ""."""
    if key.startswith(AVERAGE):
        name = key.removeprefix(AVERAGE).partition(".")[2]
        return name if name in names else ""
    name = key.removeprefix(SLOTS).rpartition(".")[0]
    return name if key.startswith(SLOTS) and name in names else ""


def _shape_and_sharding(tensor: torch.Tensor) -> str:
    sharded = f" sharded {list(tensor.placements)}" if isinstance(tensor, DTensor) else ""
    return f"{tuple(tensor.shape)}{sharded}"


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
