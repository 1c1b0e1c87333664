"""Optimizers, any number of them: their settings go with the parameters, and are proven."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.attach.keeping import digest_of, through_a_checkpoint
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all
from wattmesh.reconfig.universal.against import matches_memory
from wattmesh.reconfig.universal.folder import open_checkpoint

Groups = list[dict[str, Any]]


def test_muon_and_adamw_move_through_layouts(moved: dict[str, Any]) -> None:
    """Other numbers of optimizers, groups in another order, stages with parts of the parameters."""
    first = moved["layouts"][0]
    assert {"momentum_buffer", "exp_avg", "exp_avg_sq", "step"} == set(first["slots"])
    assert first["settings"]["layers.1.up.weight.lr"] == 0.01
    assert first["settings"]["layers.1.up.bias.weight_decay"] == 0.0
    for each in moved["layouts"][1:]:
        assert each["digest"] == first["digest"]
        assert each["settings"] == first["settings"]


@pytest.mark.parametrize(
    ("kind", "setting"),
    [(kind, each) for kind in ("AdamW", "Muon") for each in ("lr", "weight_decay", "eps")]
    + [("AdamW", "betas"), ("Muon", "momentum"), ("Muon", "nesterov")],
)
def test_a_setting_that_changed_is_noticed(moved: dict[str, Any], kind: str, setting: str) -> None:
    """On one rank: told by parameter, setting and values. On all: not what was saved."""
    said = moved["sabotage"]
    assert said["nothing"] == moved["layouts"][0]["digest"]
    assert said[f"{kind} {setting} on every rank"] != said["nothing"]
    on_one = said[f"{kind} {setting} on one rank"]
    assert "ranks hold different values under the name 'optim.param_groups.layers." in on_one
    assert f"({setting} is " in on_one


def build(group: Callable[[nn.Module], Groups], **settings: Any) -> State:
    """A model of two layers under one AdamW."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    optimizer = torch.optim.AdamW(group(net), **settings)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return State(modules=[net], optimizers=[optimizer])


def apart(net: nn.Module) -> Groups:
    """Matrices and biases, with rates of their own."""
    named = dict(net.named_parameters())
    return [
        {"params": [named["0.weight"], named["1.weight"]], "lr": 0.1},
        {"params": [named["0.bias"], named["1.bias"]], "lr": 0.3},
    ]


def turned(net: nn.Module) -> Groups:
    """The same, in another order, one group for each bias."""
    weights, biases = apart(net)
    return [{"params": [each], "lr": 7.0} for each in reversed(biases["params"])] + [weights]


def together(net: nn.Module) -> Groups:
    """All in one group."""
    return [{"params": list(net.parameters())}]


def rates(state: State) -> dict[str, float]:
    """The learning rate of every parameter."""
    plain = name_all(state).plain
    return {key: value for key, value in plain.items() if key.endswith(".lr")}


@pytest.mark.usefixtures("one_rank")
def test_settings_follow_the_parameter_into_other_groups(tmp_path: Path) -> None:
    """Whatever group the new build puts it into; what is on disk has memory's digest."""
    first, second = build(apart), build(turned)
    before = rates(first)
    assert before != rates(second)
    assert through_a_checkpoint(tmp_path, first, second) == digest_of(second)
    assert rates(second) == before
    assert matches_memory(open_checkpoint(tmp_path / "step-00000001"))


@pytest.mark.usefixtures("one_rank")
def test_one_group_for_parameters_with_different_settings_is_refused(tmp_path: Path) -> None:
    """It could not train both as before; torch takes the first one's in silence."""
    with pytest.raises(InputInvalid, match=r"'0.weight' and '0.bias' into one parameter group.*lr"):
        through_a_checkpoint(tmp_path, build(apart), build(together))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("tensor", [True, False])
def test_a_rate_that_is_a_tensor_is_filled_in_place(tmp_path: Path, *, tensor: bool) -> None:
    """What a captured graph reads stays where it is; it may come from a plain number."""
    first = build(together, lr=torch.tensor(0.25) if tensor else 0.25)
    second = build(together, lr=torch.tensor(9.0), capturable=False)
    held = second.optimizers[0].param_groups[0]["lr"]
    assert through_a_checkpoint(tmp_path, first, second) == digest_of(second)
    assert second.optimizers[0].param_groups[0]["lr"] is held
    assert float(held) == 0.25


class Stepper(torch.optim.Optimizer):
    """Keeps a plain number and a slot within a slot, as some research optimizers do."""

    def __init__(self, parameters: Any, count: int = 0) -> None:
        """Begin at a count."""
        super().__init__(parameters, {"lr": 0.1})
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each] = {"count": count, "inner": {"m": each.detach() * count}}


@pytest.mark.usefixtures("one_rank")
def test_plain_and_nested_slots_come_back_and_count(tmp_path: Path) -> None:
    """A step that is a plain number is part of what is compared."""
    nets = [nn.Linear(3, 2) for _ in range(2)]
    states = [
        State(modules=[net], optimizers=[Stepper(net.parameters(), count=count)])
        for count, net in enumerate(nets, 4)
    ]
    assert through_a_checkpoint(tmp_path, *states) == digest_of(states[1])
    slots = states[1].optimizers[0].state[nets[1].weight]
    assert slots["count"] == 4
    assert torch.equal(slots["inner"]["m"], nets[0].weight * 4)
    slots["count"] = 5
    assert digest_of(states[1]) != digest_of(states[0])


def twice(net: nn.Module) -> list[torch.optim.Optimizer]:
    """The bias is in both."""
    parameters = list(net.parameters())
    return [torch.optim.AdamW(parameters), torch.optim.SGD(parameters[1:])]


def foreign(net: nn.Module) -> list[torch.optim.Optimizer]:
    """Something that no module has."""
    return [torch.optim.AdamW([*net.parameters(), nn.Parameter(torch.ones(5))])]


def global_state(net: nn.Module) -> list[torch.optim.Optimizer]:
    """What it keeps belongs to all parameters."""
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters())
    optimizer.state["trust"] = {"radius": torch.ones(())}  # type: ignore[index]
    return [optimizer]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (twice, r"'bias' is in optimizers 0 and 1"),
        (foreign, r"optimizer 0 \(AdamW\) updates a parameter of shape \(5,\)"),
        (lambda net: [torch.optim.SGD([net.weight])], r"'bias' is trainable but in no parameter"),
        (global_state, r"SGD keeps 'trust' in its state, which belongs to no parameter"),
    ],
)
def test_optimizers_that_fit_no_parameter_are_refused_by_name(
    make: Callable[[nn.Module], list[torch.optim.Optimizer]], words: str
) -> None:
    """Twice, nowhere, of another model, or of all."""
    net = nn.Linear(3, 2)
    with pytest.raises(InputInvalid, match=words):
        name_all(State(modules=[net], optimizers=make(net)))
