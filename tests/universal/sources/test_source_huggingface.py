"""Hugging Face's files and torch's Hugging Face writer, read bit for bit; hostile ones refused."""

import io
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save

from tests.universal.comparing import Held, differing
from tests.universal.sources.test_source_forms import Run, adamw, put, same
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.index.declared import Declared, Numbered
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.sources.source import Choices

pytestmark = pytest.mark.filterwarnings("ignore")
TENSORS = {"a.w": torch.arange(6.0).reshape(2, 3), "b.w": torch.arange(4.0).bfloat16()}
HELD: Held = {(name, "param"): each for name, each in TENSORS.items()}


def indexed(folder: Path) -> Path:
    """Two shards and their index, as `save_pretrained` writes them."""
    folder.mkdir()
    names = {key: f"model-0000{n}-of-00002.safetensors" for n, key in enumerate(TENSORS, 1)}
    for key, name in names.items():
        save_file({key: TENSORS[key]}, folder / name, metadata={"format": "pt"})
    document = {"metadata": {"total_size": 32}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    return folder


def test_a_sharded_index(tmp_path: Path) -> None:
    """Every tensor comes from the file that the index names; other files are named as left out."""
    path = indexed(tmp_path / "it")
    (path / "config.json").write_text("{}")
    same(path, HELD)
    source = open_source(path)
    assert (source.kind, source.values["left_out"]) == ("huggingface", ["config.json"])


def test_torchs_hugging_face_writer(tmp_path: Path) -> None:
    """Whole, consolidated, and by ranks, where the number of files has to be said."""
    for name in ("whole", "joined", "ranks"):
        writer = HuggingFaceStorageWriter(
            str(tmp_path / name),
            save_distributed=name != "whole",
            enable_consolidation=name == "joined",
        )
        save(dict(TENSORS), storage_writer=writer, no_dist=True)
    same(tmp_path / "whole", HELD)
    same(tmp_path / "joined", HELD)
    with pytest.raises(InputInvalid, match="a lost one would not be noticed; say --shards 1"):
        open_source(tmp_path / "ranks")
    same(tmp_path / "ranks", HELD, shards=1)
    with pytest.raises(CheckpointDamaged, match="--shards 2 says otherwise"):
        open_source(tmp_path / "ranks", choices=Choices(shards=2))


def test_a_trainers_optimizer_beside(tmp_path: Path) -> None:
    """optimizer.pt is numbered, so its names are asked for; it can be left out."""
    run = Run(adamw)
    save_file(run.model.state_dict(), tmp_path / "model.safetensors")
    torch.save(run.optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save({"last_epoch": 2}, tmp_path / "scheduler.pt")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 5}')
    with pytest.raises(InputInvalid, match=r"table .*numbered"):
        open_source(tmp_path)
    declared = Declared(numbered=(Numbered(run.order),))
    same(tmp_path, run.held, declared)
    source = open_source(tmp_path, declared)
    assert source.position == {"step": 5}
    assert source.values["other"]["scheduler.last_epoch"] == 2
    weights = {key: each for key, each in run.held.items() if key[1] == "param"}
    same(tmp_path, weights, weights_only=True)
    left_out = open_source(tmp_path, choices=Choices(weights_only=True)).values["left_out"]
    assert left_out == ["optimizer.pt"]


def test_two_models_are_both_carried(tmp_path: Path) -> None:
    """Files of several models without an index keep the file's name in their tensors' names."""
    save_file(TENSORS, tmp_path / "model.safetensors")
    save_file({"a.w": TENSORS["a.w"] + 1}, tmp_path / "model_1.safetensors")
    held = {(f"model.{name}", "param"): each for name, each in TENSORS.items()}
    same(tmp_path, {**held, ("model_1.a.w", "param"): TENSORS["a.w"] + 1})
    extra = {("model.a.w", "extra"): TENSORS["a.w"], ("model.b.w", "extra"): TENSORS["b.w"]}
    same(tmp_path, {**extra, ("a.w", "param"): TENSORS["a.w"] + 1}, model="model_1.")
    with pytest.raises(InputInvalid, match=r"holds no model 'model_2.'"):
        open_source(tmp_path, choices=Choices(model="model_2."))


def test_torch_archives_of_a_model(tmp_path: Path) -> None:
    """pytorch_model.bin is read without running its pickle; a hostile one stays data."""
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    same(tmp_path, HELD)

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({**TENSORS, "evil": Evil()}, tmp_path / "pytorch_model.bin")
    source = open_source(tmp_path)
    assert differing(source.index, source.folder, HELD) == []
    assert source.values["left_out"] == ["evil"]
    assert not (tmp_path / "ran").exists()


def test_choices_of_other_kinds_are_refused(tmp_path: Path) -> None:
    """An option that means nothing for the checkpoint is said to."""
    path = indexed(tmp_path / "it")
    with pytest.raises(InputInvalid, match="--unpack means nothing for a huggingface checkpoint"):
        open_source(path, choices=Choices(unpack=tmp_path / "there"))
    with pytest.raises(InputInvalid, match="--shards is for"):
        open_source(path, choices=Choices(shards=2))


FIRST = "model-00001-of-00002.safetensors"


def _header(path: Path, change: Callable[[dict[str, Any]], Any], *, text: bytes = b"") -> None:
    """Rewrite a safetensors header."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    document = json.loads(data[8 : 8 + length])
    change(document)
    new = text or json.dumps(document).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + length :])


def _map(path: Path, key: str, file: str) -> None:
    index = path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"][key] = file
    index.write_text(json.dumps(document))


def _line(**facts: Any) -> Callable[[Path], Any]:
    return lambda it: _header(it / FIRST, lambda told: told["a.w"].update(facts))


TWICE = b'{"a.w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"a.w":{"dtype":"F32"}}'
HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file that is gone": (lambda it: (it / FIRST).unlink(), "cannot be read"),
    "an index naming a missing file": (lambda it: _map(it, "a.w", "other.safetensors"),
                                       "cannot be read|puts"),
    "a path that climbs": (lambda it: _map(it, "a.w", f"../it/{FIRST}"), "no file of it"),
    "an absolute path": (lambda it: _map(it, "a.w", "/etc/passwd"), "no file of it"),
    "a tensor that is nowhere": (lambda it: _map(it, "c.w", FIRST), "does not hold 'c.w'"),
    "a tensor of another file": (
        lambda it: _map(it, "a.w", "model-00002-of-00002.safetensors"),
        "which the index puts|does not hold",
    ),
    "a file cut off": (lambda it: (it / FIRST).write_bytes((it / FIRST).read_bytes()[:-1]),
                       "end at byte"),
    "a file cut in its header": (lambda it: (it / FIRST).write_bytes(b"\xff" * 9), "cut off"),
    "a huge shape": (_line(shape=[1 << 40, 1 << 40]), "more elements than can be counted"),
    "a shape of other bytes": (_line(shape=[3, 3]), "which its shape does not make"),
    "a negative size": (_line(shape=[-2, -3]), "whole number"),
    "an unknown dtype": (_line(dtype="F4"), "not supported"),
    "bytes of another": (_line(data_offsets=[8, 32]), "begins at byte"),
    "a name twice": (lambda it: _header(it / FIRST, dict, text=TWICE), "occurs twice"),
    "a link": (lambda it: (it / FIRST).symlink_to((it / FIRST).rename(it / "x")),
               "link|cannot be read|regular"),
    "an index of nothing": (
        lambda it: (it / "model.safetensors.index.json").write_text('{"weight_map": {}}'),
        "lists no tensors"),
    "an index that is none": (
        lambda it: (it / "model.safetensors.index.json").write_text("[" * 100_000),
        "is no index"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_files(tmp_path: Path, name: str) -> None:
    """Whatever an index or a header says of the files beside it is checked against them."""
    path = indexed(tmp_path / "it")
    change, words = HOSTILE[name]
    change(path)
    with pytest.raises((InputInvalid, CheckpointDamaged), match=words):
        open_source(path)


def _bytes_of(data: bytes) -> Iterator[bytes]:
    """The file with each byte of its header turned, one after the other."""
    for at in range(8 + struct.unpack("<Q", data[:8])[0]):
        yield data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_turned_bytes_of_a_header(tmp_path: Path) -> None:
    """Each turned byte of a header is refused, or what is read is whole and differs visibly."""
    path = indexed(tmp_path / "it")
    whole = (path / FIRST).read_bytes()
    passed = 0
    for wrong in _bytes_of(whole):
        (path / FIRST).write_bytes(wrong)
        try:
            source = open_source(path)
        except (InputInvalid, CheckpointDamaged):
            continue
        # The format has no checksum: a dtype of equal size, or text of the metadata, may pass.
        passed += 1
        assert [entry.key for entry in source.index.entries] == [("a.w", "param"), ("b.w", "param")]
    assert passed < 60


HIDDEN: dict[str, Any] = {
    "sparse": torch.eye(3).to_sparse(),
    "without data": torch.empty(3, device="meta"),
    "below": {"w": torch.ones(2)},
    "in a list": [torch.ones(2)],
    "in a tuple twice": ((shared := [torch.ones(1)]), shared),
}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_tensor_that_would_be_lost_is_refused(hidden: str, tmp_path: Path) -> None:
    """Sharded, sparse, or within something else: never left out as if it were no tensor."""
    torch.save({"w": torch.ones(2), "x": HIDDEN[hidden]}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputInvalid, match=r"'x' is no plain tensor .* would be lost"):
        open_source(tmp_path)


def test_what_is_no_tensor_is_left_out_by_name(tmp_path: Path) -> None:
    """As the extra state of a module, whose bytes nobody may execute."""
    torch.save({"w": torch.ones(2), "x": io.BytesIO(b"1")}, tmp_path / "pytorch_model.bin")
    assert open_source(tmp_path).values["left_out"] == ["x"]


def test_a_slot_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    """As the lists of matrices that SOAP and Shampoo keep."""
    run = Run(adamw, named=True)
    for slots in run.optimizer.state.values():
        slots["Q"] = [torch.eye(2), torch.eye(3)]
    save_file(run.model.state_dict(), tmp_path / "model.safetensors")
    torch.save(run.optimizer.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(InputInvalid, match=r"weight.Q' is neither a tensor nor plain data"):
        open_source(tmp_path)


@pytest.mark.parametrize("form", ["trainer", "dcp"])
def test_a_learning_rate_that_is_a_tensor(form: str, tmp_path: Path) -> None:
    """It is carried, with all other settings, for each parameter of its group alone."""

    def made(params: Any) -> torch.optim.Optimizer:
        every: list[Any] = list(params)
        groups: list[dict[str, Any]] = [{"params": every[:-2]}, {"params": every[-2:]}]
        groups[1]["lr"] = torch.tensor(0.25)
        return torch.optim.AdamW(groups, lr=0.1, foreach=False)

    run = Run(made)
    declared = Declared(numbered=(Numbered(run.order),))
    if form == "dcp":
        put(tmp_path, run.numbered)
    else:
        save_file(run.model.state_dict(), tmp_path / "model.safetensors")
        torch.save(run.optimizer.state_dict(), tmp_path / "optimizer.pt")
    rates = {(f"optim.param_groups.{name}.lr", "extra"): torch.tensor(0.25)
             for name in run.order[-2:]}  # fmt: skip
    same(tmp_path, {**run.held, **rates}, declared)
    settings = open_source(tmp_path, declared).values["param_groups"]
    assert [settings[name].get("lr") for name in run.order] == [0.1] * 4 + [None] * 2
    assert settings[run.order[-1]]["betas"] == [0.9, 0.999]


def test_settings_that_cannot_be_read_are_said_to_be_so(tmp_path: Path) -> None:
    """Not that the names of the parameters are missing."""
    run = Run(adamw, named=True)
    run.optimizer.param_groups[0]["betas"] = (torch.tensor(0.9), torch.tensor(0.99))
    save_file(run.model.state_dict(), tmp_path / "model.safetensors")
    torch.save(run.optimizer.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(InputInvalid, match="neither plain data nor a tensor each"):
        open_source(tmp_path)


def test_a_chunk_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    """One rank's file of torch's writer under the name of a model."""
    told = json.dumps({"w": {"saved_offsets": [2]}})
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors", {"DCP_SHARDING_INFO": told})
    with pytest.raises(InputInvalid, match="it holds chunks of larger tensors"):
        open_source(tmp_path)


def test_a_copy_in_another_file_than_the_index_says_is_not_taken(tmp_path: Path) -> None:
    """A stale tensor of an earlier save would take the place of the right one."""
    path = indexed(tmp_path / "it")
    second = {"b.w": TENSORS["b.w"], "a.w": torch.zeros(2, 3)}
    save_file(second, path / "model-00002-of-00002.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        InputInvalid, match=r"it holds 'a.w', which the index puts into model-00001"
    ):
        open_source(path)


def test_chunks_of_one_tensor_are_of_one_dtype(tmp_path: Path) -> None:
    """Two ranks' files of two saves."""
    for rank, dtype in enumerate((torch.float32, torch.int32), 1):
        told = json.dumps({"w": {"saved_offsets": [2 * (rank - 1)]}})
        path = tmp_path / f"shard-0000{rank}-model-00001-of-00001.safetensors"
        save_file({"w": torch.ones(2, dtype=dtype)}, path, {"DCP_SHARDING_INFO": told})
    with pytest.raises(InputInvalid, match="chunks of 'w' differ in dtype or dims"):
        open_source(tmp_path, choices=Choices(shards=2))
