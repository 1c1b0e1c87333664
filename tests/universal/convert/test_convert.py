"""Real DCP folders of four ranks through both kinds, bit by bit what the ranks held."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.universal.dcp_runs import Saved
from tests.universal.deepspeed_runs import Trained
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal import against
from wattmesh.reconfig.universal.convert.convert import convert
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.folder import CheckpointKind, open_checkpoint
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.verify import hash_in_background, verify

Held = Mapping[tuple[str, str], torch.Tensor]


def equals(uc: Path, held: Held) -> bool:
    """Whether a checkpoint holds just the tensors that the ranks held, bit by bit."""
    index = open_checkpoint(uc).index
    if {entry.key for entry in index.entries} != held.keys():
        return False
    with Files(uc) as files:
        reader = Reader(index, files)
        return all(
            reader.read(row).tobytes() == _bits(held[entry.key])
            and entry.dtype == str(held[entry.key].dtype).removeprefix("torch.")
            and entry.shape == tuple(held[entry.key].shape)
            for row, entry in enumerate(index.entries)
        )


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("case", ["dp2-tp2", "pp2-dp2", "strided"])
def test_both_kinds_hold_what_the_ranks_held(dcp_runs: Saved, tmp_path: Path, case: str) -> None:
    """Verified, and equal to the source by a way that shares no code with the copying."""
    source = open_source(dcp_runs.folder / case)
    held = dcp_runs.held(case)
    virtual = convert(source, tmp_path / "virtual", CheckpointKind.VIRTUAL)
    physical = convert(source, tmp_path / "physical", CheckpointKind.PHYSICAL, jobs=2)
    assert (virtual.verified, physical.verified) == (False, True)
    assert sum(physical.states.values()) == len(held)
    for made in (virtual, physical):
        assert equals(made.target, held)
        assert against.differences(open_source(made.target), source) == []
    assert hash_in_background(tmp_path / "virtual").good
    assert verify(tmp_path / "physical").good
    again = open_source(tmp_path / "virtual")
    convert(again, tmp_path / "again", CheckpointKind.PHYSICAL, gentle=True)
    assert equals(tmp_path / "again", held)


@pytest.mark.parametrize("name", ["zero1", "zero3"])
def test_zero_partitions_become_whole_tensors(
    deepspeed_runs: Trained, tmp_path: Path, name: str
) -> None:
    """What real DeepSpeed ranks held, through both kinds; it needs no DeepSpeed to read."""
    source = open_source(deepspeed_runs.folder / name)
    held = deepspeed_runs.held(name)
    for kind in CheckpointKind:
        made = convert(source, tmp_path / kind, kind, jobs=2).target
        index = open_checkpoint(made).index
        with Files(made) as files:
            reader = Reader(index, files)
            for key, tensor in held.items():
                assert reader.read(index.row_of(*key)).tobytes() == _bits(tensor)
        assert against.differences(open_source(made), source) == []
    assert hash_in_background(tmp_path / CheckpointKind.VIRTUAL).good
    assert verify(tmp_path / CheckpointKind.PHYSICAL).good


def test_controls_are_caught(dcp_runs: Saved, tmp_path: Path) -> None:
    """Sabotaged twins: two tensors exchanged, rows permuted, a moment dropped: each differs."""
    source = open_source(dcp_runs.folder / "dp2-tp2")
    held = dcp_runs.held("dp2-tp2")
    index = source.index
    shape = max(
        {entry.shape for entry in index.entries},
        key=lambda each: sum(entry.shape == each for entry in index.entries if len(each) == 2),
    )
    first, second = [row for row, entry in enumerate(index.entries) if entry.shape == shape][:2]
    entries = list(index.entries)
    entries[first], entries[second] = entries[second], entries[first]
    exchanged = replace(source, index=replace(index, entries=tuple(entries)))
    convert(exchanged, tmp_path / "exchanged", CheckpointKind.PHYSICAL)
    assert verify(tmp_path / "exchanged").good
    assert not equals(tmp_path / "exchanged", held)
    assert len(against.differences(open_source(tmp_path / "exchanged"), source)) == 2


def test_damage_is_not_copied_into_a_good_looking_one(dcp_runs: Saved, tmp_path: Path) -> None:
    """A flipped bit in a checkpoint of ours: made into either kind."""
    source = open_source(dcp_runs.folder / "dp2-tp2")
    convert(source, tmp_path / "uc", CheckpointKind.PHYSICAL)
    path = tmp_path / "uc" / "data-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for kind in CheckpointKind:
        with pytest.raises(CheckpointDamaged, match="differ from their digest"):
            convert(open_source(tmp_path / "uc"), tmp_path / "copy", kind)
    assert not (tmp_path / "copy").exists()


def test_a_target_that_exists_is_left_alone(dcp_runs: Saved, tmp_path: Path) -> None:
    """Whatever it is."""
    source = open_source(dcp_runs.folder / "dp2-tp2")
    (tmp_path / "uc").write_text("mine")
    for kind in CheckpointKind:
        with pytest.raises(InputInvalid, match="exists already"):
            convert(source, tmp_path / "uc", kind)
    assert (tmp_path / "uc").read_text() == "mine"
