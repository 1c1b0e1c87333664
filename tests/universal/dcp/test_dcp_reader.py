"""Loading through DCP: into any layout, exactly the bytes needed, nothing bent in silence."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tests.universal.exports.scattered import bits, scatter, small_model
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.checkpoint.dcp import TORCHTITAN, UniversalReader, UniversalWriter, cause_of
from wattmesh.reconfig.universal.folder import CheckpointKind, DataFile, Manifest, seal
from wattmesh.reconfig.universal.index.declared import Declared, Rename
from wattmesh.reconfig.universal.index.rules import SubBlocks, VocabPad

pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of two tensors and a value, saved through our writer."""
    state = {"model": {"w": torch.arange(12.0).reshape(3, 4), "v": torch.ones(2)}, "n": {"k": 3}}
    save(state, storage_writer=UniversalWriter(tmp_path / "uc"))
    save(state, checkpoint_id=tmp_path / "torch")
    return tmp_path / "uc"


def refused(state: dict[str, Any], path: Path, **options: Any) -> BaseException:
    """What a load is refused with."""
    with pytest.raises(CheckpointException) as caught:
        load(state, storage_reader=UniversalReader(path, **options))
    return cause_of(caught.value)


def test_another_dtype_is_an_error(saved: Path) -> None:
    """Torch casts in silence; ours names the tensor and touches nothing."""
    state = {"model": {"w": torch.full((3, 4), 7.0).bfloat16(), "v": torch.zeros(2)}}
    error = refused(state, saved)
    assert isinstance(error, InputInvalid)
    assert "'model.w' was saved as float32 (3, 4)" in str(error)
    assert (state["model"]["w"] == 7).all()
    assert (state["model"]["v"] == 0).all()
    load(state, checkpoint_id=saved.with_name("torch"))
    assert state["model"]["w"].dtype == torch.bfloat16
    assert state["model"]["w"][2, 3] == 11


def test_another_shape_is_an_error(saved: Path) -> None:
    """The planner refuses it by name before anything is read."""
    assert "model.w" in str(refused({"model": {"w": torch.zeros(4, 3)}}, saved))


def test_a_tensor_that_is_not_there_is_an_error(saved: Path) -> None:
    """By name; the caller may allow it, as with torch's own reader."""
    state = {"model": {"w": torch.zeros(3, 4), "lost": torch.zeros(1)}}
    assert "model.lost" in str(refused(state, saved))
    planner = DefaultLoadPlanner(allow_partial_load=True)
    load(state, storage_reader=UniversalReader(saved), planner=planner)
    assert state["model"]["w"][2, 3] == 11


def test_values_come_back_without_a_pickle(saved: Path) -> None:
    """Into the caller's nested state, or flat."""
    state: dict[str, Any] = {"n": {"k": None}}
    load(state, storage_reader=UniversalReader(saved))
    assert state == {"n": {"k": 3}}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    flat: dict[str, Any] = {"n.k": None}
    load(flat, storage_reader=UniversalReader(saved), planner=planner)
    assert flat == {"n.k": 3}


@pytest.mark.parametrize(
    "name", ["manifest.json", "COMMIT", "trainer.json", "index.json", "index.safetensors",
             "data-0-0.safetensors"]
)  # fmt: skip
@pytest.mark.parametrize("act", ["delete", "truncate"])
def test_what_is_missing_is_told(saved: Path, name: str, act: str) -> None:
    """Every file of a checkpoint, gone or cut, is named by one clear error."""
    if act == "delete":
        (saved / name).unlink()
    else:
        data = (saved / name).read_bytes()
        (saved / name).write_bytes(data[: len(data) // 2])
    error = refused({"model": {"w": torch.zeros(3, 4)}}, saved)
    assert isinstance(error, CheckpointDamaged)
    assert name in str(error) or name == "COMMIT"


def flip(path: Path) -> None:
    """Change the last byte but 16."""
    data = bytearray(path.read_bytes())
    data[-17] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_found_when_asked(saved: Path) -> None:
    """Torch loads it without a word; ours names the tensor and the file with `verify`."""
    control = saved.with_name("torch")
    where = next(control.glob("*.distcp"))
    data = where.read_bytes()
    at = data.index(torch.tensor(11.0).numpy().tobytes())
    where.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    state = {"model": {"w": torch.zeros(3, 4)}}
    load(state, checkpoint_id=control)
    assert state["model"]["w"][2, 3] != 11
    good: dict[str, Any] = {"model": {"w": torch.zeros(3, 4)}}
    load(good, storage_reader=UniversalReader(saved, verify=True))
    flip(saved / "data-0-0.safetensors")
    error = refused(good, saved, verify=True)
    assert isinstance(error, CheckpointDamaged)
    assert "data-0-0.safetensors has changed: " in str(error)


def virtual(
    folder: Path, tied: dict[str, str] | None = None
) -> dict[tuple[str, str], torch.Tensor]:
    """A virtual checkpoint whose bytes lie flat, in boxes and transposed in a foreign file."""
    tensors = small_model()
    index = scatter(folder, tensors, tied)
    found = (folder / "shards" / "data.bin").stat()
    file = DataFile(size=found.st_size, mtime_ns=found.st_mtime_ns, inode=found.st_ino)
    seal(folder, Manifest(kind=CheckpointKind.VIRTUAL, data={"shards/data.bin": file}), index, {})
    return tensors


def test_a_virtual_checkpoint_is_loaded(tmp_path: Path) -> None:
    """Flat ranges, boxes and transposed pieces of a foreign file; aliases give the same tensor."""
    tensors = virtual(tmp_path, {"head.weight": "embed.weight"})
    state: dict[str, Any] = {
        TORCHTITAN.fqn(*key): torch.zeros_like(tensor) for key, tensor in tensors.items()
    }
    state["head.weight"] = torch.zeros(13, 6)
    state["optimizer.state.head.weight.exp_avg"] = torch.zeros(13, 6)
    load(state, storage_reader=UniversalReader(tmp_path, names=TORCHTITAN))
    for key, tensor in tensors.items():
        assert bits(state[TORCHTITAN.fqn(*key)]) == bits(tensor)
    assert torch.equal(state["head.weight"], tensors["embed.weight", "param"])
    moment = state["optimizer.state.head.weight.exp_avg"]
    assert torch.equal(moment, tensors["embed.weight", "exp_avg"])


def test_names_tied_by_the_caller(saved: Path) -> None:
    """A trainer that ties what the checkpoint does not says so."""
    state = {"model": {"v": torch.zeros(2), "u": torch.zeros(2)}}
    load(state, storage_reader=UniversalReader(saved, rules=Declared(tied={"u": "v"})))
    assert state["model"]["u"].tolist() == [1, 1]
    error = refused(state, saved, rules=Declared(tied={"w": "v"}))
    assert "'w' is declared tied and stored as well" in str(error)


def test_padding_becomes_zeros(saved: Path) -> None:
    """Whatever the trainer's rows beyond the vocabulary held before."""
    rules = Declared(rules=((re.compile("w"), VocabPad(size=3)),))
    state = {"model": {"w": torch.full((5, 4), 9.0)}}
    load(state, storage_reader=UniversalReader(saved, rules=rules, padded={"w": 5}))
    assert torch.equal(state["model"]["w"][:3].reshape(-1), torch.arange(12.0))
    assert (state["model"]["w"][3:] == 0).all()


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (VocabPad(size=2), "rule vocab_pad makes"),
        (VocabPad(size=4), "must be between"),
        (SubBlocks(widths=((2, 2),)), "the widths add up to 4"),
        (VocabPad(dim=3, size=2), "dim 3 is none"),
    ],
)
def test_a_rule_that_does_not_fit_is_told(saved: Path, rules: Any, told: str) -> None:
    """Before anything is read."""
    declared = Declared(rules=((re.compile("w"), rules),))
    error = refused({"model": {"w": torch.zeros(3, 4)}}, saved, rules=declared)
    assert isinstance(error, InputInvalid)
    assert told in str(error)


def test_renames_are_refused(saved: Path) -> None:
    """They say how a source's names become logical ones, and cannot be turned round."""
    rules = Declared(renames=(Rename(re.compile("a"), "b"),))
    with pytest.raises(InputInvalid, match="no inverse"):
        UniversalReader(saved, rules=rules)


def test_one_reader_may_read_another_checkpoint(saved: Path) -> None:
    """`checkpoint_id` points it elsewhere, as with torch's."""
    other = saved.with_name("other")
    shutil.copytree(saved, other)
    reader = UniversalReader(saved.with_name("nothing"))
    state = {"model": {"w": torch.zeros(3, 4)}}
    load(state, storage_reader=reader, checkpoint_id=other)
    assert state["model"]["w"][2, 3] == 11
    assert UniversalReader.validate_checkpoint_id(other)
    assert not UniversalReader.validate_checkpoint_id(saved.with_name("torch"))


@pytest.mark.parametrize(
    "view", [lambda: torch.zeros(4, 3).t(), lambda: torch.zeros(6, 8)[::2, ::2]]
)
def test_destinations_of_any_strides_are_filled(
    saved: Path, view: Callable[[], torch.Tensor]
) -> None:
    """A tensor that lies transposed or with gaps in memory is filled in place."""
    tensor = view()
    load({"model": {"w": tensor}}, storage_reader=UniversalReader(saved))
    assert torch.equal(tensor, torch.arange(12.0).reshape(3, 4))


def test_any_layout_loads_any_other(said: dict[str, Any]) -> None:
    """A trained model saved as dp2 tp2 has one digest as dp4, tp4 and dp2 tp2 again."""
    found = said["reshards"]
    assert {found[name] for name in ("dp4 tp1", "dp1 tp4", "dp2 tp2")} == {found["saved"]}
    assert found["before dp4 tp1"] != found["saved"]
    assert said["placements"] == {"wrong": [], "tensors": 135}


def test_no_more_is_read_than_is_needed(said: dict[str, Any]) -> None:
    """Rows, columns, quarters, all: the worst rank reads its own bytes."""
    assert max(said["resharded_bytes"].values()) <= 1.05


@pytest.mark.parametrize("case", ["fused", "padded", "permuted_experts"])
def test_declared_layouts_are_stored_logically(said: dict[str, Any], case: str) -> None:
    """Fused QKV, padded vocabularies, placed experts: saved in one layout, loaded in another."""
    assert all(said[case].values()), said[case]
    assert said["padded"]["step"] == 3.0


def test_fused_rows_are_permuted_by_torch(said: dict[str, Any]) -> None:
    """The control: tp2's fused QKV loaded by tp4 as it lies is wrong, and nothing says so."""
    assert said["fused_undeclared"] == {"loaded": False}
