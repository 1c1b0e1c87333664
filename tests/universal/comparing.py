"""Bit-for-bit comparison of an index's tensors with those held in memory, and ways to spoil it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from tests.universal.exports.scattered import bits
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.index import Index

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
