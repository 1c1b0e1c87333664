"""Checkpoints made to hurt whoever opens them: little to store, much to read. One function each.

Invariant: a bomb is at least as large as its name says, so that its cost per byte means something.
"""

import hashlib
import json
import os
import pickle
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from benchmarks.hostile import seeds
from benchmarks.hostile.mutants import seal_again
from benchmarks.hostile.seeds import fragment_address

MIB = 1 << 20
FILE = "__0_0.distcp"


def _dcp(folder: Path, raw: bytes) -> None:
    """A DCP folder whose `.metadata` has those bytes."""
    folder.mkdir(parents=True)
    (folder / ".metadata").write_bytes(raw)
    (folder / FILE).write_bytes(b"\0" * 64)


def _described(folder: Path, told: Mapping[str, Any], places: Mapping[MetadataIndex, Any]) -> None:
    """A DCP folder with that index."""
    metadata = Metadata(state_dict_metadata=dict(told), storage_data=dict(places))
    _dcp(folder, pickle.dumps(metadata))


def _tensor(count: int = 1) -> TensorStorageMetadata:
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([1]))
    return TensorStorageMetadata(TensorProperties(), torch.Size([1]), [chunk] * count)


def _one(fqn: str, count: int, folder: Path) -> None:
    place = _StorageInfo(FILE, 0, 64)
    _described(folder, {fqn: _tensor(count)}, {MetadataIndex(fqn, torch.Size([0])): place})


def name_of_many_prefixes(folder: Path) -> None:
    """One FQN of 20,000 "state."."""
    _one("state." * 20_000 + "w", 1, folder)


def many_names_of_many_prefixes(folder: Path) -> None:
    """500 FQNs, each of 110 different "state."; each as long as a name may be."""
    chance = random.Random(15)
    told, places = {}, {}
    for _ in range(500):
        fqn = "".join(f"{chance.choice('abcdef')}.state." for _ in range(110)) + "w"
        told[fqn] = _tensor()
        places[MetadataIndex(fqn, torch.Size([0]))] = _StorageInfo(FILE, 0, 64)
    _described(folder, told, places)


def values_at_one_place(folder: Path) -> None:
    """200 values, all of them the same pickle of 1 MB."""
    folder.mkdir(parents=True)
    torch.save(list(range(250_000)), folder / FILE)
    place = _StorageInfo(FILE, 0, (folder / FILE).stat().st_size)
    names = [f"value.{at}" for at in range(200)]
    metadata = Metadata(
        state_dict_metadata={name: BytesStorageMetadata() for name in names},
        storage_data={MetadataIndex(name): place for name in names},
    )
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def values_that_overlap(folder: Path) -> None:
    """200 values, each one byte further into the same pickle."""
    values_at_one_place(folder)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for at, index in enumerate(metadata.storage_data):
        old = metadata.storage_data[index]
        metadata.storage_data[index] = _StorageInfo(FILE, at, old.length - at)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def one_text_1500_times(folder: Path) -> None:
    """A text of 1 MB that a list names 1,500 times: 1.57 GB of trainer.json."""
    seeds.zero1(folder)
    path = folder / "step7" / "mp_rank_00_model_states.pt"
    model = torch.load(path, weights_only=False)
    model["notes"] = ["x" * MIB] * 1_500
    torch.save(model, path)


def settings_of_every_parameter(folder: Path) -> None:
    """A group's settings of 400 kB, for each of its 4,000 parameters: 1.6 GB of trainer.json."""
    folder.mkdir(parents=True)
    names = [f"w{at}" for at in range(4_000)]
    model = {
        "module": {},
        "param_shapes": [{name: torch.Size([1]) for name in names}],
        "shared_params": {},
    }
    torch.save(model, folder / "mp_rank_00_model_states.pt")
    held = {
        "zero_stage": 1,
        "partition_count": 1,
        "single_partition_of_fp32_groups": [torch.zeros(len(names))],
        "param_slice_mappings": [{name: fragment_address(at, 1) for at, name in enumerate(names)}],
        "base_optimizer_state": {
            "state": {},
            "param_groups": [{"params": [0], "notes": "x" * 400_000}],
        },
    }
    path = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": held}, path)


def one_mapping_for_3000_groups(folder: Path) -> None:
    """The same 3,000 addresses for each of 3,000 groups: nine million rows."""
    folder.mkdir(parents=True)
    names = [f"w{at}" for at in range(3_000)]
    shapes = {name: torch.Size([1]) for name in names}
    groups = range(3_000)
    model = {"module": {}, "param_shapes": [shapes, *({} for _ in groups[1:])], "shared_params": {}}
    torch.save(model, folder / "mp_rank_00_model_states.pt")
    mapping = {name: fragment_address(at, 1) for at, name in enumerate(names)}
    held = {
        "zero_stage": 1,
        "partition_count": 1,
        "single_partition_of_fp32_groups": [torch.zeros(len(names))] * len(groups),
        "param_slice_mappings": [mapping] * len(groups),
        "base_optimizer_state": {
            "state": {},
            "param_groups": [{"params": [at]} for at in groups],
        },
    }
    path = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": held}, path)


def one_chunk_300000_times(folder: Path) -> None:
    """A tensor that lists the same chunk again and again, two bytes each."""
    _one("w", 300_000, folder)


def one_element_for_ever(folder: Path) -> None:
    """A buffer of 2^40 elements that are all the same four bytes."""
    seeds.zero1(folder)
    path = folder / "step7" / "mp_rank_00_model_states.pt"
    model = torch.load(path, weights_only=False)
    model["module"]["mean"] = torch.zeros(1).expand(1 << 40)
    torch.save(model, path)


def lists_in_lists(folder: Path) -> None:
    """4 MiB of "]": as many lists."""
    _dcp(folder, b"\x80\x04" + b"]" * (4 * MIB) + b".")


def memo_cells(folder: Path) -> None:
    """4 MiB of None, each remembered."""
    _dcp(folder, b"\x80\x04" + b"N\x94" * (2 * MIB) + b".")


def records(folder: Path) -> None:
    """2 MiB of calls of what nobody knows."""
    call = b"h\x00h\x01R"
    _dcp(folder, b"\x80\x04ca\nb\nq\x00)q\x01" + call * (2 * MIB // len(call)) + b".")


def numbers(folder: Path) -> None:
    """4 MiB of numbers: honest bytes, which are only many."""
    _dcp(folder, b"\x80\x04](" + b"J\x00\x00\x01\x00" * (4 * MIB // 5) + b"e.")


def rank_of_eleven_digits(folder: Path) -> None:
    """The file of rank 99,999,999,999 and of none before."""
    seeds.zero3(folder)
    name = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    (folder / name.format(1)).rename(folder / name.format(99_999_999_999))


def pipe_as_latest(folder: Path) -> None:
    """`latest` is a pipe that nobody writes to."""
    seeds.zero1(folder)
    (folder / "latest").unlink()
    os.mkfifo(folder / "latest")


def latest_without_end(folder: Path) -> None:
    """`latest` is a link to /dev/zero."""
    seeds.zero1(folder)
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("/dev/zero")


def tag_elsewhere(folder: Path) -> None:
    """`latest` names a folder beside it that is a link to another user's."""
    seeds.zero1(folder.with_name("elsewhere"))
    folder.mkdir()
    (folder / "latest").write_text("mine")
    (folder / "mine").symlink_to(folder.with_name("elsewhere") / "step7")


def commit_without_end(folder: Path) -> None:
    """COMMIT is a link to /dev/zero."""
    seeds.physical(folder)
    (folder / "COMMIT").unlink()
    (folder / "COMMIT").symlink_to("/dev/zero")


def _hole(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).touch()
    os.truncate(folder / name, 1 << 40)


def metadata_of_a_tebibyte(folder: Path) -> None:
    """`.metadata` is a hole of 1 TiB."""
    seeds.dcp(folder)
    _hole(folder, ".metadata")


def manifest_of_a_tebibyte(folder: Path) -> None:
    """manifest.json is a hole of 1 TiB."""
    seeds.physical(folder)
    _hole(folder, "manifest.json")


def trainer_of_a_tebibyte(folder: Path) -> None:
    """trainer.json is a hole of 1 TiB."""
    seeds.physical(folder)
    _hole(folder, "trainer.json")


def record_of_a_tebibyte(folder: Path) -> None:
    """hashes.safetensors is a hole of 1 TiB."""
    seeds.virtual(folder)
    _hole(folder, "hashes.safetensors")


def pipe_as_record(folder: Path) -> None:
    """verified.json is a pipe that nobody writes to."""
    seeds.virtual(folder)
    (folder / "verified.json").unlink()
    os.mkfifo(folder / "verified.json")


def _resealed(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Our own checkpoint with one document changed, and sealed again."""
    seeds.physical(folder)
    document = json.loads((folder / name).read_bytes())
    made = change(document)
    text = made if isinstance(made, str) else json.dumps(document if made is None else made)
    (folder / name).write_text(text)
    seal_again(folder)


def nul_in_a_path(folder: Path) -> None:
    """The manifest names a data file with a NUL byte in its path."""
    _resealed(folder, "manifest.json", lambda it: it["data"].update({"a\0b": {"size": 1}}))


def nul_in_the_index(folder: Path) -> None:
    """The index names a data file with a NUL byte in its path."""
    _resealed(folder, "index.json", lambda it: it["files"].append("a\0b"))


def nested_manifest(folder: Path) -> None:
    """A manifest of 100,000 lists in each other, well sealed."""
    seeds.physical(folder)
    text = b"[" * 100_000 + b"]" * 100_000
    (folder / "manifest.json").write_bytes(text)
    (folder / "COMMIT").write_text(hashlib.sha256(text).hexdigest())


def nested_trainer(folder: Path) -> None:
    """Values 900 deep: less than JSON's reader minds, more than the next one does."""
    _resealed(folder, "trainer.json", lambda it: it["values"].update({"x": _deep(900)}))


def _deep(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def header_of_a_tebibyte(folder: Path) -> None:
    """A data file that is a hole of 1 TiB, and all of it its header."""
    seeds.physical(folder)
    document = json.loads((folder / "manifest.json").read_bytes())
    (name,) = document["data"]
    os.truncate(folder / name, 1 << 40)
    document["data"][name].update({"size": 1 << 40, "header_nbytes": 1 << 40})
    (folder / "manifest.json").write_text(json.dumps(document))
    seal_again(folder)


def shape_beyond_numbers(folder: Path) -> None:
    """A tensor of 2^200 elements in the index."""
    _resealed(folder, "index.json", lambda it: it["entries"][0].__setitem__(3, [1 << 200]))


def ten_thousand_dims(folder: Path) -> None:
    """2,000 tensors and one segment, in columns for 10,000 dims: 160 MB where they are spread."""
    seeds.physical(folder)
    rule = {"kind": "replicate", "dim": 0}
    entries = [[f"w{at}", "param", "float32", [1], 0] for at in range(2_000)]
    names = {"version": 1, "dims": 10_000, "rules": [rule], "entries": entries, "files": ["f"],
             "tied": {}}  # fmt: skip
    (folder / "index.json").write_text(json.dumps(names))
    narrow = {name: np.zeros(1, np.int64) for name in ("entry", "file", "offset", "nbytes", "flat")}
    wide = {name: np.ones((1, 10_000), np.int64) for name in ("start", "shape", "strides")}
    (folder / "index.safetensors").write_bytes(save({**narrow, **wide}))
    seal_again(folder)


def boxes_side_by_side(folder: Path) -> None:
    """20,000 columns of one row, the half of them twice as wide: each pair must be compared."""
    seeds.physical(folder)
    count = 20_000
    rule = {"kind": "replicate", "dim": 0}
    names = {"version": 1, "dims": 2, "rules": [rule], "files": ["f"], "tied": {},
             "entries": [["w", "param", "uint8", [count, 2 * count], 0]]}  # fmt: skip
    (folder / "index.json").write_text(json.dumps(names))
    at = np.arange(count, dtype=np.int64)
    start = np.stack([at, at], axis=1)
    shape = np.stack([count - at, np.ones(count, np.int64)], axis=1)
    strides = np.tile(np.array([1, 1], np.int64), (count, 1))
    zeros = np.zeros(count, np.int64)
    columns = {"entry": zeros, "file": zeros, "offset": at, "flat": zeros, "start": start,
               "shape": shape, "strides": strides, "nbytes": count - at}  # fmt: skip
    (folder / "index.safetensors").write_bytes(save(columns))
    document = json.loads((folder / "manifest.json").read_bytes())
    document["data"] = {"f": {"size": 2 * count}}
    (folder / "manifest.json").write_text(json.dumps(document))
    (folder / "f").write_bytes(b"\0" * 2 * count)
    seal_again(folder)


def zip_of_many_records(folder: Path) -> None:
    """An archive whose directory claims four million records."""
    seeds.zero3(folder)
    path = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\6\6")
    struct.pack_into("<2Q", data, end + 24, 4_000_000, 4_000_000)
    path.write_bytes(data)


BOMBS: Mapping[str, tuple[Callable[[Path], None], str]] = {
    make.__name__: (make, words)
    for make, words in (
        (name_of_many_prefixes, "no name of a tensor"),
        (many_names_of_many_prefixes, "does not end like an archive of torch"),
        (values_at_one_place, "repeat the same bytes"),
        (values_that_overlap, "two archives at once"),
        (one_text_1500_times, "repeat each other to far more text"),
        (settings_of_every_parameter, "repeat each other to far more text"),
        (one_mapping_for_3000_groups, "the same things over and over"),
        (one_chunk_300000_times, "over and over|begin at the same element"),
        (one_element_for_ever, "repeat the same bytes"),
        (lists_in_lists, "the same things over and over"),
        (memo_cells, "the same things over and over"),
        (records, "something left over"),
        (numbers, "Metadata is expected"),
        (rank_of_eleven_digits, "of rank 1 is missing"),
        (pipe_as_latest, "latest is no plain file"),
        (latest_without_end, "latest is no plain file but a symbolic link"),
        (tag_elsewhere, "a symbolic link"),
        (commit_without_end, "COMMIT is no plain file but a symbolic link"),
        (metadata_of_a_tebibyte, "metadata has 1099511627776 bytes, not at most"),
        (manifest_of_a_tebibyte, "manifest.json has 1099511627776 bytes, not at most"),
        (trainer_of_a_tebibyte, "trainer.json has 1099511627776 bytes, not the"),
        (record_of_a_tebibyte, "hashes.safetensors has 1099511627776 bytes, not at most"),
        (pipe_as_record, "verified.json is no plain file"),
        (nul_in_a_path, "only plain relative paths"),
        (nul_in_the_index, "is not an index|names .* does not"),
        (nested_manifest, "no manifest .nested more than 100 deep"),
        (nested_trainer, "nested more than 100 deep"),
        (header_of_a_tebibyte, "longer than the file, or than any header"),
        (shape_beyond_numbers, "has the shape"),
        (ten_thousand_dims, "10000 dims"),
        (boxes_side_by_side, "overlap|missing|repeat"),
        (zip_of_many_records, "directory of 4000000 records lies outside"),
    )
}
"""By name: what makes it in a folder that is not there yet, and what a reader says of it."""
