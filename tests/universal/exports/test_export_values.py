"""Settings, steps and counters out of trainer.json, whoever wrote it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.universal.exports.scattered import sealed, small_model
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.exports import values
from wattmesh.reconfig.universal.exports.engine import engine_of
from wattmesh.reconfig.universal.folder import Checkpoint, open_checkpoint

WIDE = {"lr": 0.1, "betas": [0.9, 0.999]}
FLAT = {"lr": 0.2, "betas": [0.9, 0.999]}
BY_PARAMETER = {
    "header": {"step": 7, "samples": 70},
    "values": {
        "param_groups": {"embed.weight": WIDE, "layers.0.w": WIDE, "norm": FLAT},
        "slots": {},
    },
}
BY_FLAT_NAME = {
    "header": {"step": 7, "samples": 70},
    "values": {
        "optim.param_groups.layers.0.w.lr": 0.1,
        "optim.param_groups.layers.0.w.betas": {"__tuple__": [0.9, 0.999]},
        "optim.param_groups.layers.0.w.lr_as_tensor": {"__tensor__": "x"},
        "optim.state.layers.0.w.calls": 3,
        "something.else": 5,
        "something.with.tensors": [1, {"a": {"__tensor__": "x"}}],
    },
}


def test_both_shapes_of_values_are_read() -> None:
    """Jobs write flat names, converted sources nested ones; tensors and strangers are left out."""
    found = values.from_trainer(BY_FLAT_NAME)
    assert found.settings == {"layers.0.w": {"lr": 0.1, "betas": (0.9, 0.999)}}
    assert found.numbers == {"layers.0.w": {"calls": 3}}
    assert found.other == {"something.else": 5}
    found = values.from_trainer(BY_PARAMETER)
    assert found.groups(["norm", "embed.weight", "layers.0.w", "other"]) == [FLAT, WIDE]
    assert values.from_trainer({}).settings == {}


def opened(folder: Path, trainer: Any, kind: str = "dcp") -> Checkpoint:
    """A checkpoint of a small model, with a trainer.json."""
    checkpoint = open_checkpoint(sealed(folder, small_model(), trainer))
    return replace(checkpoint, manifest=replace(checkpoint.manifest, source={"kind": kind}))


def test_counters_and_groups_of_an_engine(tmp_path: Path) -> None:
    """Different settings are groups, in the order of the parameters."""
    engine = engine_of(opened(tmp_path / "a", BY_PARAMETER))
    assert (engine.global_steps, engine.global_samples) == (7, 70)
    assert list(engine.groups) == [WIDE, FLAT]
    engine = engine_of(opened(tmp_path / "b", {"header": {"step": 7}}))
    assert (engine.global_samples, list(engine.groups)) == (None, [{}])


def test_the_number_of_groups_is_the_readers(tmp_path: Path) -> None:
    """More groups keep their own settings; fewer cannot hold those that differ."""
    checkpoint = opened(tmp_path, BY_PARAMETER)
    assert list(engine_of(checkpoint, 3).groups) == [WIDE, FLAT, {}]
    with pytest.raises(InputInvalid, match="2 different groups of settings; 1 parameter groups"):
        engine_of(checkpoint, 1)


def test_only_deepspeeds_own_client_data_goes_back_to_it(tmp_path: Path) -> None:
    """A schedule and client data come back where they came from, and nowhere else."""
    told = {"param_groups": {}, "other": {"lr_scheduler": {"last": 3}, "note": 1}}
    trainer = {"header": {"step": 7}, "values": told}
    engine = engine_of(opened(tmp_path / "a", trainer, "deepspeed"))
    assert (engine.lr_scheduler, engine.client) == ({"last": 3}, {"note": 1})
    engine = engine_of(opened(tmp_path / "b", trainer))
    assert (engine.lr_scheduler, engine.client) == (None, {})


def test_a_checkpoint_without_a_step(tmp_path: Path) -> None:
    """DeepSpeed counts from it, so it is not made up."""
    with pytest.raises(InputInvalid, match="does not say at which step"):
        engine_of(opened(tmp_path, {"values": {}}))
