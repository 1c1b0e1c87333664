"""The door that the command line uses: a checkpoint folder to each of the formats."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.universal.exports.scattered import bits, scatter, small_model
from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal.convert.exporting import ExportFormat, TrainerNames, export
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.folder import Checkpoint, open_checkpoint
from wattmesh.reconfig.universal.index.declared import Rename
from wattmesh.reconfig.universal.sources.source import Source, fingerprints

VALUES = {"param_groups": {"norm": {"lr": 0.5}}, "slots": {}, "other": {}, "left_out": []}


def physical(tmp_path: Path) -> Checkpoint:
    """A physical checkpoint, with digests."""
    index = scatter(tmp_path / "pieces", small_model())
    with Files(tmp_path / "pieces") as files:
        seen = fingerprints(files, index.files)
    source = Source(
        kind="dcp", described="pieces", folder=tmp_path / "pieces", index=index, values=VALUES,
        position={"step": 7, "samples": 70}, files=seen,
    )  # fmt: skip
    return open_checkpoint(write_physical(source, tmp_path / "source", jobs=1))


def test_a_checkpoint_to_every_format(tmp_path: Path) -> None:
    """Each format holds the tensors, and those that can the settings and the position."""
    checkpoint = physical(tmp_path)
    renames = [Rename(re.compile("^layers"), "model.layers")]
    export(checkpoint, tmp_path / "hf", ExportFormat.HF, renames=renames)
    export(checkpoint, tmp_path / "dcp", ExportFormat.DCP)
    export(checkpoint, tmp_path / "titan", ExportFormat.DCP, trainer=TrainerNames.TORCHTITAN)
    export(checkpoint, tmp_path / "deepspeed", ExportFormat.DEEPSPEED)
    wanted = bits(small_model()["layers.0.w", "param"])
    found = load_file(tmp_path / "hf" / "model.safetensors")
    assert bits(found["model.layers.0.w"]) == wanted
    for name in ("dcp", "titan"):
        dcp_to_torch_save(tmp_path / name, tmp_path / f"{name}.pt")
    found = torch.load(tmp_path / "dcp.pt", weights_only=True)
    assert bits(found["model"]["layers.0.w"]) == wanted
    assert found["optim"]["param_groups.norm.lr"] == 0.5
    found = torch.load(tmp_path / "titan.pt", weights_only=True)
    assert bits(found["layers.0.w"]) == wanted
    assert found["optimizer"]["param_groups.norm.lr"] == 0.5
    states = torch.load(tmp_path / "deepspeed/mp_rank_00_model_states.pt", weights_only=True)
    assert (states["global_steps"], states["global_samples"]) == (7, 70)


@pytest.mark.parametrize("to", list(ExportFormat))
def test_damage_is_not_handed_on(tmp_path: Path, to: ExportFormat) -> None:
    """Sabotaged twin: one changed byte of a tensor, and nothing is exported; it is named."""
    checkpoint = physical(tmp_path)
    path = checkpoint.folder / "data-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[data.index(bits(small_model()["norm", "param"]))] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointDamaged, match=r"norm \(param\).*nothing was exported"):
        export(checkpoint, tmp_path / "out", to)
    assert not (tmp_path / "out").exists()
