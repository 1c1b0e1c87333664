"""A small checkpoint whose tensors lie about in pieces: what exports are tried on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wattmesh.reconfig.universal.folder import CheckpointKind, DataFile, Manifest, seal
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.index import Index, Segment, TensorEntry, build

Tensors = Mapping[tuple[str, str], torch.Tensor]


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor, row by row."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def scatter(folder: Path, tensors: Tensors, tied: Mapping[str, str] | None = None) -> Index:
    """Write tensors below `folder` in pieces, last piece first; give the index of them.

    Even tensors are cut into flat ranges, odd ones into boxes, one of which lies transposed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries, segments = [], []
    parts = list(_parts(tensors))
    data = bytearray(b"unused head")
    for entry, flat, box, raw, strides in reversed(parts):
        where = Segment(
            entry=entry, file="shards/data.bin", offset=len(data), box=box, flat=flat,
            strides=strides,
        )  # fmt: skip
        segments.append(where)
        data += raw + b"gap"
    for (name, state), tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append(TensorEntry(name=name, state=state, dtype=dtype, shape=tuple(tensor.shape)))
    path = folder / "shards" / "data.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return build(entries, segments, tied)


def sealed(folder: Path, tensors: Tensors, trainer: Mapping[str, Any]) -> Path:
    """Make a whole checkpoint folder of scattered tensors."""
    index = scatter(folder, tensors)
    size = (folder / "shards" / "data.bin").stat().st_size
    data = {"shards/data.bin": DataFile(size=size)}
    seal(folder, Manifest(kind=CheckpointKind.PHYSICAL, data=data), index, trainer)
    return folder


Part = tuple[tuple[str, str], bool, Box, bytes, tuple[int, ...] | None]


def _parts(tensors: Tensors) -> Iterator[Part]:
    for number, (key, tensor) in enumerate(tensors.items()):
        whole: NDArray[np.generic] = np.frombuffer(
            bits(tensor), dtype=f"u{tensor.element_size()}"
        ).reshape(tensor.shape)
        if tensor.ndim == 0 or tensor.numel() == 0:
            yield key, False, Box.whole(tensor.shape), whole.tobytes(), None
        elif number % 2 == 0:
            middle = tensor.numel() // 3
            flat = whole.reshape(-1)
            yield key, True, Box((0,), (middle,)), flat[:middle].tobytes(), None
            rest = Box((middle,), (len(flat) - middle,))
            yield key, True, rest, flat[middle:].tobytes(), None
        else:
            yield from _boxes(key, whole)


def _boxes(key: tuple[str, str], whole: NDArray[np.generic]) -> Iterator[Part]:
    rows = whole.shape[0] // 2
    for begin, end in ((0, rows), (rows, whole.shape[0])):
        part = whole[begin:end]
        if part.size == 0:
            continue
        box = Box((begin, *(0,) * (part.ndim - 1)), part.shape)
        steps = np.cumprod([1, *part.shape[:-1]])
        yield key, False, box, part.tobytes(order="F"), tuple(int(each) for each in steps)


def small_model(seed: int = 0) -> dict[tuple[str, str], torch.Tensor]:
    """Parameters, buffers and two slots, in several dtypes and shapes."""
    chance = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (13, 6), "layers.0.w": (6, 5), "layers.0.b": (5,), "norm": (6,)}
    tensors: dict[tuple[str, str], torch.Tensor] = {}
    for name, shape in shapes.items():
        for state in ("param", "exp_avg", "exp_avg_sq"):
            tensors[name, state] = torch.randn(shape, generator=chance)
        tensors[name, "step"] = torch.tensor(7.0)
    tensors["layers.0.half", "param"] = torch.randn((3, 2), generator=chance).bfloat16()
    tensors["counter", "param"] = torch.tensor(2**40 + 1)
    tensors["mask", "param"] = torch.tensor([[True, False], [False, True]])
    tensors["empty", "param"] = torch.zeros((0, 4))
    return tensors
