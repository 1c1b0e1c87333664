"""The parts of a switch that go around torch's planners: shares of a save, slots, hand-over."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from wattmesh.reconfig.checkpoint.direct import assign
from wattmesh.reconfig.state.aliased_load import filled_in_place
from wattmesh.reconfig.state.optimizer.slots import begin_slots
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all
from wattmesh.reconfig.universal.folder import Checkpoint, CheckpointKind, Manifest
from wattmesh.reconfig.universal.index.index import TensorEntry, build

BOXES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 100)), max_size=12)


@given(held=st.lists(BOXES, min_size=1, max_size=4))
def test_every_box_is_written_once_by_a_rank_that_holds_it(
    held: list[list[tuple[int, int]]],
) -> None:
    """Whatever ranks hold in common, each box has one writer among its holders."""
    rows = [sorted(dict(of_rank).items()) for of_rank in held]
    writer = assign(rows)
    assert set(writer) == {box for of_rank in rows for box, _ in of_rank}
    for box, rank in writer.items():
        assert box in dict(rows[rank])


def test_replicas_are_spread_over_their_holders() -> None:
    """Four equal boxes on two ranks: two each."""
    rows = [[(box, 10) for box in range(4)]] * 2
    assert sorted(assign(rows).values()) == [0, 0, 1, 1]


def net() -> nn.Module:
    """A weight, a bias, and a scalar parameter."""
    made = nn.Linear(3, 2)
    made.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    return made


def checkpoint_of(module: nn.Module, slots: dict[str, torch.Tensor], values: Any) -> Checkpoint:
    """An index of a module and its slots, without bytes."""
    found: dict[tuple[str, str], torch.Tensor] = {}
    found |= {(name, "param"): each.detach() for name, each in module.named_parameters()}
    for key, slot in slots.items():
        name, _, state = key.removeprefix("state.").rpartition(".")
        found[name, state] = slot
    entries = [
        TensorEntry(name=name, state=state, dtype=str(each.dtype)[6:], shape=tuple(each.shape))
        for (name, state), each in found.items()
    ]
    return Checkpoint(
        folder=Path(),
        manifest=Manifest(kind=CheckpointKind.PHYSICAL, data={}),
        index=build(entries, []),
        trainer={"values": values},
    )


def torch_slots(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The slots that torch's way makes."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    found: dict[str, Any] = dict(get_optimizer_state_dict(module, optimizer, options=options))
    return {
        key: value
        for key, value in found.items()
        if key.startswith("state.") and isinstance(value, torch.Tensor)
    }


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": False, "amsgrad": True}])
def test_slots_are_those_that_torch_makes(options: dict[str, Any]) -> None:
    """Same names, shapes, dtypes and places, without a step."""
    twin = net()
    theirs = torch_slots(twin, torch.optim.AdamW(twin.parameters(), **options))
    module = net()
    optimizer = torch.optim.AdamW(module.parameters(), **options)
    begin_slots(State(modules=[module], optimizers=[optimizer]), checkpoint_of(twin, theirs, {}))
    assert len(optimizer.state) == 3
    ours = torch_slots(module, optimizer)
    kind = [{k: (v.shape, v.dtype, v.device) for k, v in each.items()} for each in (ours, theirs)]
    assert kind[0] == kind[1]


@pytest.mark.parametrize("odd", ["nested", "factored", "a number"])
def test_slots_of_a_form_not_known_are_left_to_torch(odd: str) -> None:
    """A slot within a slot, of another shape, or a plain number: nothing is made."""
    module = net()
    slots = {"state.weight.exp_avg": torch.zeros(2, 3)}
    values = {}
    if odd == "nested":
        slots["state.weight.0.left"] = torch.zeros(2, 3)
    elif odd == "factored":
        slots["state.weight.row"] = torch.zeros(2)
    else:
        values["optim.state.weight.count"] = 3
    optimizer = torch.optim.AdamW(module.parameters())
    state = State(modules=[module], optimizers=[optimizer])
    begin_slots(state, checkpoint_of(module, slots, values))
    assert not optimizer.state


class Listener(nn.Linear):
    """Wants to hear of loads."""

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)


def test_only_what_was_filled_in_place_is_not_handed_over() -> None:
    """The model's own memory, and no module that listens: then, and only then, nothing is left."""
    module = nn.Linear(3, 2)
    tensors = name_all(State(modules=[module], optimizers=[sgd(module)])).tensors
    assert filled_in_place(module, tensors)
    assert not filled_in_place(module, {key: each.clone() for key, each in tensors.items()})
    module.register_load_state_dict_post_hook(lambda *_: None)  # type: ignore[no-untyped-call]
    assert not filled_in_place(module, tensors)
    listener = Listener(3, 2)
    named = name_all(State(modules=[listener], optimizers=[sgd(listener)]))
    assert not filled_in_place(listener, named.tensors)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of all of a module."""
    return torch.optim.SGD(module.parameters(), lr=0.1)
