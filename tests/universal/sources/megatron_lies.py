"""Changes what a `torch_dist` checkpoint says of itself, in `.metadata` and in common.pt."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata


def edited(folder: Path, edit: Callable[[Metadata], None]) -> Path:
    """Let `.metadata` say something else."""
    path = folder / ".metadata"
    told = pickle.loads(path.read_bytes())
    edit(told)
    path.write_bytes(pickle.dumps(told))
    return folder


def lose(key: str) -> Callable[[Metadata], None]:
    """A tensor or an object is gone."""
    return lambda told: told.state_dict_metadata.__delitem__(key)


def rename(old: str, new: str) -> Callable[[Metadata], None]:
    """One tensor or object is called otherwise everywhere."""

    def edit(told: Metadata) -> None:
        told.state_dict_metadata[new] = told.state_dict_metadata.pop(old)
        for index in list(told.storage_data):
            if index.fqn == old:
                info = told.storage_data.pop(index)
                told.storage_data[type(index)(new, index.offset, index.index)] = info

    return edit


def without_chunk(key: str, layer: int) -> Callable[[Metadata], None]:
    """The chunks of one layer are gone."""

    def edit(told: Metadata) -> None:
        tensor = told.state_dict_metadata[key]
        assert isinstance(tensor, TensorStorageMetadata)
        tensor.chunks = [each for each in tensor.chunks if each.offsets[0] != layer]

    return edit


def longer(key: str) -> Callable[[Metadata], None]:
    """A stack with one layer more than there is."""

    def edit(told: Metadata) -> None:
        tensor = told.state_dict_metadata[key]
        assert isinstance(tensor, TensorStorageMetadata)
        tensor.size = torch.Size([tensor.size[0] + 1, *tensor.size[1:]])

    return edit


def changed_common(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change what common.pt holds."""
    told = torch.load(folder / "common.pt", weights_only=False)
    change(told)
    torch.save(told, folder / "common.pt")
    return folder


def moved(key: str, at: int, by: tuple[int, ...]) -> Callable[[Metadata], None]:
    """One chunk of a tensor begins elsewhere."""

    def edit(told: Metadata) -> None:
        tensor = told.state_dict_metadata[key]
        assert isinstance(tensor, TensorStorageMetadata)
        chunk = tensor.chunks[at]
        start = torch.Size([a + b for a, b in zip(chunk.offsets, by, strict=True)])
        (index,) = (x for x in told.storage_data if (x.fqn, x.offset) == (key, chunk.offsets))
        info = told.storage_data.pop(index)
        told.storage_data[type(index)(key, start, index.index)] = info
        tensor.chunks[at] = type(chunk)(start, chunk.sizes)

    return edit


def packed(told: Metadata) -> None:
    """All archives are compressed."""
    for info in told.storage_data.values():
        info.transform_descriptors = ["zstd"]


def sharing(told: Metadata) -> None:
    """One archive begins in the middle of another."""
    first, second, *_ = sorted(
        (info for info in told.storage_data.values() if info.relative_path == "__0_0.distcp"),
        key=lambda info: info.offset,
    )
    second.offset = first.offset + 1


def flattened(key: str) -> Callable[[Metadata], None]:
    """A tensor has one dim more."""

    def edit(told: Metadata) -> None:
        tensor = told.state_dict_metadata[key]
        assert isinstance(tensor, TensorStorageMetadata)
        tensor.size = torch.Size([1, *tensor.size])
        for at, chunk in enumerate(tensor.chunks):
            start, sizes = torch.Size([0, *chunk.offsets]), torch.Size([1, *chunk.sizes])
            (index,) = (x for x in told.storage_data if (x.fqn, x.offset) == (key, chunk.offsets))
            info = told.storage_data.pop(index)
            told.storage_data[type(index)(key, start, index.index)] = info
            tensor.chunks[at] = type(chunk)(start, sizes)

    return edit
