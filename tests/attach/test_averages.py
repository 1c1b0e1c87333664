"""Averages of the parameters (EMA): moved with them through pipeline, tensor and data parallel."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.attach.keeping import digest_of, through_a_checkpoint
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all
from wattmesh.reconfig.universal.folder import open_checkpoint
from wattmesh.reconfig.universal.index.names import HOOK


def test_averages_move_with_their_parameters(moved: dict[str, Any]) -> None:
    """In every layout the digest is that of the first, and every average is bit by bit the same."""
    first = moved["layouts"][0]
    assert [each["name"] for each in moved["layouts"]] == ["tp2 pp2", "dp4", "dp2 tp2", "tp2 pp2"]
    assert len(first["averages"]) == 8
    for each in moved["layouts"][1:]:
        assert each["digest"] == first["digest"]
        assert each["averages"] == first["averages"]


def test_an_average_is_sharded_like_its_parameter(moved: dict[str, Any]) -> None:
    """Four ranks of pp2 tp2 hold the averages' elements once or as replicas, never the whole."""
    for each in moved["layouts"]:
        assert each["average_elements"] == each["parameter_elements"]


@pytest.mark.parametrize("sabotage", ["shifted on one rank", "left out", "under another slot"])
def test_an_average_that_was_lost_or_changed_is_noticed(
    moved: dict[str, Any], sabotage: str
) -> None:
    """The sabotaged twins: none of them has the digest of what was saved, or ranks disagree."""
    assert moved["sabotage"][sabotage] != moved["layouts"][0]["digest"]


def build(*, averages: bool = True) -> State:
    """A tiny model with an average of its own values, in double precision."""
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    named = {name: each.detach().double() for name, each in net.named_parameters()}
    return State(
        modules=[net],
        optimizers=[optimizer],
        averages={"ema": named} if averages else {},
    )


@pytest.mark.usefixtures("one_rank")
def test_an_average_is_a_slot_of_its_parameter_in_the_checkpoint(tmp_path: Path) -> None:
    """Of its own dtype, beside the optimizer's slots, and back in place."""
    first, second = build(), build()
    held = second.averages["ema"]["weight"]
    digest = through_a_checkpoint(tmp_path, first, second)
    assert digest_of(second) == digest
    assert second.averages["ema"]["weight"] is held
    assert torch.equal(held, first.averages["ema"]["weight"])
    index = open_checkpoint(tmp_path / "step-00000001").index
    entry = index.entries[index.row_of("weight", "average.ema")]
    assert (entry.dtype, entry.shape) == ("float64", (2, 3))
    assert HOOK.fqn(*entry.key) == "average.ema.weight"


@pytest.mark.usefixtures("one_rank")
def test_a_job_that_forgets_its_averages_is_told_by_the_digest(tmp_path: Path) -> None:
    """A build without them cannot go on with a checkpoint that has them, nor the other way."""
    forgetful = build(averages=False)
    assert through_a_checkpoint(tmp_path, build(), forgetful) != digest_of(forgetful)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(CheckpointDamaged, match=r"holds no tensor 'average.ema"):
        through_a_checkpoint(other, build(averages=False), build())


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("averages", "words"),
    [
        ({"ema": {"wheight": torch.zeros(2, 3)}}, "'wheight', which is no parameter"),
        ({"ema": {"weight": torch.zeros(6)}}, r"is \(6,\), the parameter is \(2, 3\)"),
        ({"e.ma": {"weight": torch.zeros(2, 3)}}, "choose a plain word"),
    ],
)
def test_an_average_that_fits_no_parameter_is_refused_by_name(
    averages: dict[str, dict[str, torch.Tensor]], words: str
) -> None:
    """Before anything is written."""
    state = build(averages=False)
    state.averages.update(averages)
    with pytest.raises(InputInvalid, match=words):
        name_all(state)


def test_teardown_lets_averages_go() -> None:
    """They count as the old layout's memory."""
    state = build()
    state.close()
    assert state.averages == {}
