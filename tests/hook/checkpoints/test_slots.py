"""Optimizer slots that some parameters do not have, and values that hold tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.checkpoint.checkpoint import (
    facts_of,
    find_damage,
    load,
    save,
)
from wattmesh.reconfig.checkpoint.digest import logical_digest
from wattmesh.reconfig.checkpoint.header import Header, header_of
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all, name_to_fill

pytestmark = pytest.mark.usefixtures("one_rank")


class Branches(nn.Module):
    """Two branches, of which a step may use one."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.used = nn.Linear(3, 3)
        self.idle = nn.Linear(3, 3)

    def forward(self, x_BD: torch.Tensor, *, both: bool) -> torch.Tensor:
        """Give one branch, or the sum."""
        y_BD: torch.Tensor = self.used(x_BD)
        return y_BD + self.idle(x_BD) if both else y_BD


class Average:
    """An extra state with a tensor in it."""

    def __init__(self, value: float) -> None:
        """Begin at `value`."""
        self.mean = torch.full((2,), value)

    def state_dict(self) -> dict[str, Any]:
        """Give the state."""
        return {"mean": self.mean, "seen": (1, 2)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        assert state_dict["seen"] == (1, 2)
        self.mean = state_dict["mean"]


def built(seed: int, kind: str) -> State:
    """A fresh state."""
    torch.manual_seed(seed)
    net = Branches()
    optimizer: torch.optim.Optimizer
    if kind == "adam":
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, foreach=False)
    elif kind == "momentum":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    elif kind == "adagrad":
        optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1, foreach=False)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    return State([net], [optimizer], extra={"average": Average(float(seed))})


def train(state: State, *, both: bool) -> None:
    """Two steps."""
    for _ in range(2):
        loss = state.modules[0](torch.ones(2, 3), both=both).square().sum()
        torch.autograd.backward(loss)
        state.optimizers[0].step()
        state.optimizers[0].zero_grad()


def digest(state: State) -> str:
    """The logical digest of a state."""
    named = name_all(state)
    return logical_digest(named.tensors, facts_of(state), named.values)


def header(said: str) -> Header:
    """A header at step 2."""
    return header_of(
        run="r", attempt=1, position=Position(step=2), layout=Layout(), ranks=(0,), digest=said
    )


def saved(folder: Path, state: State) -> Path:
    """Save a state."""
    return save(RunFolder(folder), name_all(state), state, header(digest(state)), lambda: None)


@pytest.mark.parametrize("kind", ["adam", "momentum", "adagrad", "plain"])
def test_a_parameter_that_never_got_a_gradient(tmp_path: Path, kind: str) -> None:
    """It has no slots before and none after; training on with it gives the same to the bit."""
    first = built(1, kind)
    train(first, both=False)
    path = saved(tmp_path, first)
    second = built(2, kind)
    load(path, name_to_fill(second), second)
    assert digest(second) == digest(first)
    for state in (first, second):
        train(state, both=True)
    assert digest(second) == digest(first)
    again = saved(tmp_path / "again", second)
    third = built(3, kind)
    load(again, name_to_fill(third), third)
    assert digest(third) == digest(first)


def test_slots_that_a_checkpoint_lost_are_missed(tmp_path: Path) -> None:
    """The sabotaged twin: a slot that was there and was not written is told by name."""
    first, second = built(1, "momentum"), built(2, "momentum")
    train(first, both=True)
    named = name_all(first)
    del named.tensors["optim.state.used.weight.momentum_buffer"]
    path = save(RunFolder(tmp_path), named, first, header(digest(first)), lambda: None)
    with pytest.raises(CheckpointDamaged, match=r"holds no tensor 'optim.state.*momentum_buffer'"):
        load(path, name_to_fill(second), second)


def test_an_optimizer_that_has_not_begun_is_saved_as_it_is(tmp_path: Path) -> None:
    """Saving makes no slots and counts no step in a state that trains; loading gives none."""
    first, second = built(1, "adam"), built(2, "adam")
    path = saved(tmp_path, first)
    assert not first.optimizers[0].state
    load(path, name_to_fill(second), second)
    assert not second.optimizers[0].state
    for state in (first, second):
        train(state, both=True)
    assert digest(second) == digest(first)


def test_tensors_in_extra_state_come_back(tmp_path: Path) -> None:
    """They are entries of the checkpoint like all others."""
    first, second = built(1, "adam"), built(2, "adam")
    train(first, both=True)
    load(saved(tmp_path, first), name_to_fill(second), second)
    average = second.extra["average"]
    assert isinstance(average, Average)
    assert average.mean.tolist() == [1.0, 1.0]


def test_damage_is_found_by_name(tmp_path: Path) -> None:
    """A changed byte is loaded, as torch would; the digest differs and the tensor is named."""
    first, second = built(1, "adam"), built(2, "adam")
    train(first, both=True)
    path = saved(tmp_path, first)
    assert find_damage(path) == ""
    file = path / "data-0-0.safetensors"
    data = bytearray(file.read_bytes())
    data[4096 + 1] ^= 1
    file.write_bytes(data)
    load(path, name_to_fill(second), second)
    assert digest(second) != digest(first)
    assert "has changed: used.weight (param)" in find_damage(path)
