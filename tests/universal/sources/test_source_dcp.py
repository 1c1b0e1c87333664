"""Folders of torch DCP read bit for bit, in every layout; doubtful ones are refused by name."""

import dataclasses
import io
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tests.universal.comparing import (
    SPOILT,
    damaged,
    differences_are_seen,
    differing,
    same_index,
)
from tests.universal.dcp_runs import CASES, ORDER, QKV_WIDTHS, Saved
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.cover import prove
from wattmesh.reconfig.universal.index.declared import Declared, Rename
from wattmesh.reconfig.universal.index.names import HOOK, TORCHTITAN, Names
from wattmesh.reconfig.universal.index.rules import ExpertStack, SubBlocks, VocabPad
from wattmesh.reconfig.universal.sources.dcp.dcp import open_dcp
from wattmesh.reconfig.universal.sources.source import BYTES

NOTHING = Declared()
OPAQUE = ("dataloader.dp_rank_0", BYTES)


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_what_the_ranks_held(dcp_runs: Saved, case: str) -> None:
    """Every (tensor, state) equals, bit for bit, what the saving ranks held in memory."""
    source = open_dcp(dcp_runs.folder / case, NOTHING)
    found = differing(source.index, source.folder, dcp_runs.held(case))
    assert found == ([OPAQUE] if case == "titan" else [])
    assert set(source.index.files) < set(source.files)


@pytest.mark.parametrize("how", list(SPOILT))
def test_differences_are_seen(dcp_runs: Saved, how: str) -> None:
    """Negative controls: the comparison names exactly the tensor that was spoilt."""
    source = open_dcp(dcp_runs.folder / "hsdp", NOTHING)
    keys = [("experts", "param"), ("qkv.weight", "momentum_buffer")]
    differences_are_seen(source, dcp_runs.held("hsdp"), keys, how)


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("pp2-dp2", HOOK),
        ("titan", TORCHTITAN),
        ("nested", Names("app.model.", "app.optim.")),
    ],
)
def test_prefixes_are_found(dcp_runs: Saved, case: str, names: Names) -> None:
    """The prefixes are found from the keys, said, and the same as when they are given."""
    source = open_dcp(dcp_runs.folder / case, NOTHING)
    assert f"prefixes {names.model!r} and {names.optim!r}" in source.described
    given_names = open_dcp(dcp_runs.folder / case, NOTHING, names)
    assert given_names.index.entries == source.index.entries
    with pytest.raises(InputInvalid, match="is no slot or setting of a parameter"):
        open_dcp(dcp_runs.folder / case, NOTHING, Names("other.", names.optim))


@pytest.mark.parametrize("case", ["dp2-tp2", "nested", "not-flattened"])
def test_settings_come_by_parameter(dcp_runs: Saved, case: str) -> None:
    """Settings are JSON by parameter, whether the optimizer's state was flattened or not."""
    source = open_dcp(dcp_runs.folder / case, NOTHING)
    trained = {name for name, state in dcp_runs.held(case) if state == "exp_avg"}
    groups = source.values["param_groups"]
    assert set(groups) == trained
    for group in groups.values():
        assert group["betas"] == [0.9, 0.999]
        assert group["lr"] > 0
    assert source.values["left_out"] == []


def test_other_values(dcp_runs: Saved) -> None:
    """Plain values beside model and optimizer are JSON; what is none stays as its bytes."""
    source = open_dcp(dcp_runs.folder / "titan", NOTHING)
    assert source.values["other"] == {
        "train_state.losses": [0.5, 0.25],
        "lr_scheduler.last_epoch": 7,
    }
    with Files(source.folder) as files:
        data = Reader(source.index, files).read(source.index.row_of(*OPAQUE)).tobytes()
    assert torch.load(io.BytesIO(data), weights_only=True) == b"opaque \x00 bytes"


def test_declared_rules_and_renames(dcp_runs: Saved) -> None:
    """Fused QKV comes unfused, padding goes, experts come in order, stages are renamed."""
    declared = Declared(
        rules=(
            (re.compile("qkv"), SubBlocks(0, QKV_WIDTHS)),
            (re.compile("embed"), VocabPad(0, 10)),
            (re.compile("experts"), ExpertStack(0, ORDER)),
        ),
        renames=(Rename(re.compile(r"^stage1\."), ""),),
    )
    source = open_dcp(dcp_runs.folder / "declared", declared)
    held = dcp_runs.held("declared")
    assert len(held) == 6
    assert differing(source.index, source.folder, held) == []


def test_undeclared_rules_are_not_guessed(dcp_runs: Saved) -> None:
    """The control: without declarations everything is stored as it lies, so all of it differs."""
    declared = Declared(renames=(Rename(re.compile(r"^stage1\."), ""),))
    source = open_dcp(dcp_runs.folder / "declared", declared)
    held = dcp_runs.held("declared")
    assert differing(source.index, source.folder, held) == sorted(held)


def save(folder: Path, state: dict[str, Any]) -> Path:
    """Save with torch, in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_save(state, checkpoint_id=folder, no_dist=True)
    return folder


def small() -> dict[str, Any]:
    """Two parameters, their slots and settings."""
    state: dict[str, Any] = {}
    for name in ("a.w", "b.w"):
        state[f"model.{name}"] = torch.arange(6.0).reshape(2, 3)
        for slot in ("exp_avg", "exp_avg_sq"):
            state[f"optim.state.{name}.{slot}"] = torch.arange(6.0).reshape(2, 3) + len(slot)
        state[f"optim.state.{name}.step"] = torch.tensor(3.0)
        state[f"optim.param_groups.{name}.lr"] = 0.1
    return state


Change = Callable[[dict[str, Any]], Any]
_DOUBTFUL: dict[str, tuple[Change, str]] = {
    "a slot without its parameter": (
        lambda it: it.pop("model.b.w"),
        r"'optim.state.b.w.exp_avg' is no slot",
    ),
    "a slot of another shape": (
        lambda it: it.update({"optim.state.b.w.exp_avg": torch.zeros(3)}),
        r"'optim.state.b.w.exp_avg' is no slot",
    ),
    "numbered parameters": (
        lambda it: it.update({"optim.state.0.exp_avg": torch.zeros(3)}),
        r"'optim.state.0.exp_avg' is no slot",
    ),
    "a slot without any name": (
        lambda it: it.update({"optim.state.exp_avg": torch.zeros(3)}),
        r"'optim.state.exp_avg' is no slot",
    ),
    "a lost slot": (
        lambda it: it.pop("optim.state.b.w.exp_avg_sq"),
        r"b.w lacks the optimizer slots exp_avg_sq",
    ),
    "a renamed slot": (
        lambda it: it.update({"optim.state.b.w.exp_ave": it.pop("optim.state.b.w.exp_avg")}),
        r"exp_ave.*was renamed or lost",
    ),
    "settings of no parameter": (
        lambda it: it.update({"optim.param_groups.c.w.lr": 0.1}),
        r"'optim.param_groups.c.w.lr' is no slot",
    ),
    "a reserved slot": (
        lambda it: it.update({"optim.state.b.w.param": torch.zeros(2, 3)}),
        r"reserved",
    ),
    "two models": (
        lambda it: it.update({"ema.a.w": torch.zeros(2, 3), "ema.b.w": torch.zeros(2, 3)}),
        r"2 models fit its optimizer, 'ema.', 'model.'; say which by --model",
    ),
    "no model": (
        lambda it: [it.pop("model.a.w"), it.pop("model.b.w")],
        r"a slot of a parameter that does not exist",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(_DOUBTFUL))
def test_doubtful_keys_are_refused(name: str, tmp_path: Path) -> None:
    """A key that cannot be proven to mean what it seems to mean is named."""
    state = small()
    change, words = _DOUBTFUL[name]
    change(state)
    with pytest.raises(InputInvalid, match=words):
        open_dcp(save(tmp_path / "it", state), NOTHING)


def test_frozen_and_extra_tensors(tmp_path: Path) -> None:
    """Tensors without slots are fine where no group names them; others keep their whole key."""
    state = {**small(), "model.frozen": torch.ones(2), "ema": torch.ones(3)}
    source = open_dcp(save(tmp_path / "it", state), NOTHING)
    rows = source.index.rows
    assert {("frozen", "param"), ("ema", "extra"), ("a.w", "step")} <= set(rows)


def test_two_kinds_of_optimizer(tmp_path: Path) -> None:
    """Parameters of another optimizer have other slots; sharing a step counter is no doubt."""
    state = small()
    for slot in ("exp_avg", "exp_avg_sq"):
        state.pop(f"optim.state.b.w.{slot}")
    state["optim.state.b.w.sum"] = torch.ones(2, 3)
    source = open_dcp(save(tmp_path / "it", state), NOTHING)
    assert ("b.w", "sum") in source.index.rows


def test_two_models_with_given_prefixes(tmp_path: Path) -> None:
    """Where the keys fit two prefixes, giving them decides."""
    state = {**small(), "ema.a.w": torch.zeros(2, 3), "ema.b.w": torch.zeros(2, 3)}
    source = open_dcp(save(tmp_path / "it", state), NOTHING, HOOK)
    assert ("ema.a.w", "extra") in source.index.rows


def test_model_alone_keeps_its_names(tmp_path: Path) -> None:
    """Without an optimizer nothing can be proven, so names stay as they are."""
    source = open_dcp(save(tmp_path / "it", {"model.w": torch.ones(2)}), NOTHING)
    assert [entry.key for entry in source.index.entries] == [("model.w", "param")]


def test_a_parameter_without_gradient_is_said(tmp_path: Path) -> None:
    """One that a group lists and that has no slot at all never had a gradient: it is named."""
    state = small()
    for slot in ("exp_avg", "exp_avg_sq", "step"):
        state.pop(f"optim.state.b.w.{slot}")
    source = open_dcp(save(tmp_path / "it", state), NOTHING)
    assert source.values["without_slots"] == ["b.w"]
    assert source.described.endswith("1 of its parameters have no optimizer state, as b.w")


def test_declared_slots(tmp_path: Path) -> None:
    """A parameter that rightly has fewer slots is declared; a wrong declaration is refused."""
    state = small()
    state.pop("optim.state.b.w.exp_avg_sq")
    folder = save(tmp_path / "it", state)
    slots = frozenset({"exp_avg", "step"})
    open_dcp(folder, Declared(slots=((re.compile(r"^b\."), slots),)))
    wrong = Declared(slots=((re.compile(r"^b\."), frozenset({"exp_avg", "exp_avg_sq"})),))
    with pytest.raises(InputInvalid, match="declared are exp_avg, exp_avg_sq"):
        open_dcp(folder, wrong)


def test_declared_tied_names(tmp_path: Path) -> None:
    """A tied name is stored once; two tensors that differ are not tied."""
    state = {"w": torch.ones(3), "head": torch.ones(3), "other": torch.zeros(3)}
    folder = save(tmp_path / "it", state)
    source = open_dcp(folder, Declared(tied={"head": "w"}))
    assert source.index.tied == {"head": "w"}
    assert ("head", "param") not in source.index.rows
    with pytest.raises(InputInvalid, match="head and other"):
        open_dcp(folder, Declared(tied={"head": "other"}))


def _first(metadata: Metadata) -> tuple[MetadataIndex, Any]:
    return next((k, v) for k, v in metadata.storage_data.items() if k.fqn == "model.a.w")


def _moved(**facts: Any) -> Callable[[Metadata], Any]:
    def change(metadata: Metadata) -> None:
        index, info = _first(metadata)
        metadata.storage_data[index] = dataclasses.replace(info, **facts)

    return change


def _told(metadata: Metadata) -> TensorStorageMetadata:
    told = metadata.state_dict_metadata["model.a.w"]
    assert isinstance(told, TensorStorageMetadata)
    return told


def _described(**facts: Any) -> Callable[[Metadata], Any]:
    def change(metadata: Metadata) -> None:
        told = metadata.state_dict_metadata["model.a.w"]
        metadata.state_dict_metadata["model.a.w"] = dataclasses.replace(told, **facts)

    return change


_HALF = ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([1, 3]))
_HOSTILE: dict[str, tuple[Callable[[Metadata], Any], str]] = {
    "a path that climbs": (_moved(relative_path="../it/__0_0.distcp"), "only plain relative"),
    "an absolute path": (_moved(relative_path="/etc/passwd"), "only plain relative"),
    "a path that is none": (_moved(relative_path=7), "is malformed"),
    "another file": (_moved(relative_path="__9_9.distcp"), "cannot be read"),
    "an offset beyond the file": (_moved(offset=1 << 40), "ends before"),
    "a length beyond the file": (_moved(length=1 << 40), "two archives at once"),
    "a negative offset": (_moved(offset=-1), "is malformed"),
    "an offset in the middle": (_moved(offset=3), "two archives at once"),
    "a transform": (_moved(transform_descriptors=["cipher/1"]), "only zstd is read"),
    "zstd": (_moved(transform_descriptors=["stream.zstd/1"]), "--unpack FOLDER"),
    "a transform that is none": (_moved(transform_descriptors=[7]), "transforms of .* malformed"),
    "another shape": (_described(size=torch.Size([2, 4])), "exp_avg' is no slot"),
    "another chunk": (_described(chunks=[_HALF]), r"metadata says float32 \(1, 3\)"),
    "a chunk twice": (lambda it: _told(it).chunks.append(
        ChunkStorageMetadata(torch.Size([0, 1]), torch.Size([2, 2]))), "does not say where"),
    "no places": (lambda it: setattr(it, "storage_data", None), "another storage wrote it"),
    "no contents": (lambda it: setattr(it, "state_dict_metadata", None), "what is stored"),
    "no chunks": (_described(chunks=None), "are no list"),
    "more elements than can be counted": (
        _described(size=torch.Size([1 << 40, 1 << 40])),
        "is no size",
    ),
    "no size": (_described(size=5), "is no size"),
    "no dtype": (_described(properties=3), "has no dtype"),
    "another dtype": (
        lambda it: setattr(_told(it).properties, "dtype",
                           torch.quint8), "quint8"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(_HOSTILE))
def test_hostile_metadata(name: str, tmp_path: Path) -> None:
    """`.metadata` that lies about the files is refused, whatever it says."""
    folder = save(tmp_path / "it", small())
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change, words = _HOSTILE[name]
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises((InputInvalid, CheckpointDamaged), match=words):
        open_dcp(folder, NOTHING)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_missing_files(name: str, tmp_path: Path) -> None:
    """A file that is gone is named."""
    folder = save(tmp_path / "it", small())
    (folder / name).unlink()
    with pytest.raises(CheckpointDamaged, match=re.escape(name)):
        open_dcp(folder, NOTHING)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small folder, not to be changed."""
    return save(tmp_path_factory.mktemp("dcp") / "whole", small())


@given(data=st.data())
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    """A flipped or missing byte is refused; or is in a tensor's bytes; or leaves a whole index.

    torch keeps no checksum of `.metadata`, so a changed name may pass: then all is still covered.
    """
    expected = open_dcp(whole, NOTHING)
    names = [".metadata", "__0_0.distcp"]
    name, found = damaged(data, whole, tmp_path / "it", names, lambda at: open_dcp(at, NOTHING))
    if found is not None:
        prove(found.index)
        assert name == ".metadata" or same_index(found, expected)
