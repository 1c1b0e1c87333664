"""The one door: a sealed checkpoint folder to each of the formats, with what trainer.json says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.universal.scattered import bits, sealed, small_model
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.exports import values
from wattmesh.reconfig.universal.exports.checkpoint import Format, Options, export

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


def test_a_checkpoint_to_every_format(tmp_path: Path) -> None:
    """Each format holds the tensors, and those that can the settings and the position."""
    tensors = small_model()
    source = sealed(tmp_path / "source", tensors, BY_PARAMETER)
    for to in Format:
        export(source, to, tmp_path / to)
    wanted = bits(tensors["layers.0.w", "param"])
    assert bits(load_file(tmp_path / "hf" / "model.safetensors")["layers.0.w"]) == wanted
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "all.pt")
    found = torch.load(tmp_path / "all.pt", weights_only=True)
    assert bits(found["model"]["layers.0.w"]) == wanted
    assert found["optim"]["param_groups.norm.lr"] == 0.2
    states = torch.load(tmp_path / "deepspeed/mp_rank_00_model_states.pt", weights_only=True)
    assert (states["global_steps"], states["global_samples"]) == (7, 70)
    assert groups_in(tmp_path / "deepspeed") == [{**WIDE, "params": []}, {**FLAT, "params": []}]


def groups_in(folder: Path) -> list[dict[str, Any]]:
    """The parameter groups of a DeepSpeed folder."""
    optimizer = torch.load(folder / "zero" / "optimizer_state.pt", weights_only=True)
    groups: list[dict[str, Any]] = optimizer["param_groups"]
    return groups


def test_the_number_of_groups_is_the_readers(tmp_path: Path) -> None:
    """More groups keep their own settings; fewer cannot hold those that differ."""
    source = sealed(tmp_path / "source", small_model(), BY_PARAMETER)
    export(source, Format.DEEPSPEED, tmp_path / "three", options=Options(groups=3))
    assert [sorted(group) for group in groups_in(tmp_path / "three")] == [
        ["betas", "lr", "params"],
        ["betas", "lr", "params"],
        ["params"],
    ]
    with pytest.raises(InputInvalid, match="2 different groups of settings; 1 parameter groups"):
        export(source, Format.DEEPSPEED, tmp_path / "one", options=Options(groups=1))


def test_steps_that_are_plain_numbers(tmp_path: Path) -> None:
    """They become DeepSpeed's step files and DCP's byte values."""
    tensors = {key: tensor for key, tensor in small_model().items() if key[1] != "step"}
    steps = {name: {"step": 7} for name in ("embed.weight", "layers.0.w", "layers.0.b", "norm")}
    source = sealed(tmp_path / "source", tensors, {"values": {"param_groups": {}, "slots": steps}})
    export(source, Format.DEEPSPEED, tmp_path / "out")
    assert torch.load(tmp_path / "out/zero/norm/step.pt", weights_only=True) == 7
    optimizer = torch.load(tmp_path / "out/zero/optimizer_state.pt", weights_only=True)
    assert optimizer["optimizer_state_dict"]["state"] == {0: {"step": 7}}
    steps["norm"]["step"] = 8
    source = sealed(tmp_path / "other", tensors, {"values": {"param_groups": {}, "slots": steps}})
    with pytest.raises(InputInvalid, match=r"embed\.weight and norm are at different steps"):
        export(source, Format.DEEPSPEED, tmp_path / "out-2")


@pytest.mark.parametrize("to", list(Format))
def test_a_broken_seal_exports_nothing(tmp_path: Path, to: Format) -> None:
    """A folder that is no whole checkpoint is refused before anything is written."""
    source = sealed(tmp_path / "source", small_model(), {})
    text = (source / "index.json").read_bytes().replace(b"norm", b"nurm")
    (source / "index.json").write_bytes(text)
    with pytest.raises(CheckpointDamaged, match=r"index\.json differs"):
        export(source, to, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
