"""Bit-for-bit comparison of an index's tensors with those held in memory, and ways to spoil it."""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.universal.exports.scattered import bits
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.index import COLUMNS, Index
from wattmesh.reconfig.universal.sources.source import Source

Held = Mapping[tuple[str, str], torch.Tensor]


def differing(index: Index, folder: Path, held: Held) -> list[tuple[str, str]]:
    """Keys that only one side has, or whose dtype, shape or bits differ."""
    rows = {entry.key: row for row, entry in enumerate(index.entries)}
    found = set(rows) ^ set(held)
    with Files(folder) as files:
        reader = Reader(index, files)
        for key in set(rows) & set(held):
            entry, tensor = index.entries[rows[key]], held[key]
            told = (entry.dtype, entry.shape)
            same = told == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            if not same or reader.read(rows[key]).tobytes() != bits(tensor):
                found.add(key)
    assert all(dtypes.size_of(entry.dtype) for entry in index.entries)
    return sorted(found)


def _swapped(held: Held, key: tuple[str, str]) -> Held:
    """Two experts (here: the first two rows) changed places."""
    tensor = held[key].clone()
    tensor[[0, 1]] = tensor[[1, 0]]
    return {**held, key: tensor}


def _permuted(held: Held, key: tuple[str, str]) -> Held:
    """Fused blocks interleaved otherwise: what a wrong QKV rule does."""
    tensor = held[key]
    order = torch.arange(len(tensor)).reshape(-1, 1).flip(0).flatten()
    return {**held, key: tensor[order]}


def _dropped(held: Held, key: tuple[str, str]) -> Held:
    """A moment that is not there."""
    return {other: tensor for other, tensor in held.items() if other != key}


def _stale(held: Held, key: tuple[str, str]) -> Held:
    """One element that is one bit off."""
    tensor = held[key].clone()
    flat = tensor.view(-1).view(torch.uint8)
    flat[0] ^= 1
    return {**held, key: tensor}


SPOILT: dict[str, Callable[[Held, tuple[str, str]], Held]] = {
    "two experts swapped": _swapped,
    "QKV permuted": _permuted,
    "a moment dropped": _dropped,
    "one bit": _stale,
}
"""What a comparison must notice, exactly at the key that was spoilt."""


def held_in(path: Path) -> Held:
    """What ranks wrote down of their memory, whole, by (name, state)."""
    parts = ((key.partition("|"), value) for key, value in load_file(path).items())
    return {(key, state): value for (key, _, state), value in parts}


def differences_are_seen(source: Source, held: Held, keys: list[tuple[str, str]], how: str) -> None:
    """Negative control: the comparison names exactly the tensor that was spoilt."""
    for key in keys:
        assert differing(source.index, source.folder, SPOILT[how](held, key)) == [key]


def damaged(
    data: st.DataObject, whole: Path, folder: Path, names: list[str], read: Callable[[Path], Source]
) -> tuple[str, Source | None]:
    """Copy a folder and change or cut one byte: the file, and what was read unless refused."""
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    name = data.draw(st.sampled_from(names))
    content = bytearray((whole / name).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.booleans())
    if cut:
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    (folder / name).write_bytes(content)
    with contextlib.suppress(InputInvalid, CheckpointDamaged):
        found = read(folder)
        assert not cut
        return name, found
    return name, None


def same_index(one: Source, other: Source) -> bool:
    """Whether two sources have equal entries, values and segments."""
    columns = (name for name in COLUMNS if name != "flat")
    return (one.index.entries, one.values) == (other.index.entries, other.values) and all(
        (getattr(one.index.segments, name) == getattr(other.index.segments, name)).all()
        for name in columns
    )
