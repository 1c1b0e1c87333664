"""Writes and reads a rank's own boxes of a universal checkpoint, without a planner.

Torch's planners gather, merge and check plans for every tensor, in Python, on every save and load.
A session does not need that: the logical digest has compared names, boxes and replicas.

Invariant: every box is written by one rank that holds it; a rank reads exactly its own box, of the
saved dtype and shape.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.dcp_storage.files import (
    FILE_BYTES,
    PlacedPiece,
    TensorPiece,
    report_in_json,
    write_files,
)
from wattmesh.reconfig.checkpoint.dcp_storage.parts import Part
from wattmesh.reconfig.checkpoint.in_memory.host_memory import MappedFiles
from wattmesh.reconfig.checkpoint.in_memory.staged import PIECE_BYTES, reader_of
from wattmesh.reconfig.launch.group import gather_bytes
from wattmesh.reconfig.state import boxes, copiers, plain
from wattmesh.reconfig.state.memory import (
    Staging,
    advise_huge_pages,
    as_array,
    boxes_within,
    dtype_name,
    narrow,
    torch_dtype,
)
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.folder import Checkpoint, DataFile
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.names import HOOK

Boxes = Mapping[str, boxes.LocalBox]


def own_share(held: Boxes) -> list[str]:
    """Choose the boxes that this rank writes. A collective call.

    Of the ranks that hold a box, the one with the fewest bytes so far writes it.
    """
    rows = [[box.box_id, box.local.numel() * box.local.element_size()] for box in held.values()]
    every = gather_bytes(np.array(rows, dtype=np.int64).tobytes())
    told = [np.frombuffer(each, dtype=np.int64).reshape(-1, 2).tolist() for each in every]
    writer = assign(told)
    mine = dist.get_rank()
    return [key for key, box in held.items() if writer[box.box_id] == mine]


def assign(held: Sequence[Sequence[Sequence[int]]]) -> dict[int, int]:
    """Assign each box id to the rank that writes it. `held`: per rank, rows of (box id, bytes)."""
    holders: dict[int, list[int]] = {}
    size: dict[int, int] = {}
    for rank, rows in enumerate(held):
        for box_id, nbytes in rows:
            holders.setdefault(box_id, []).append(rank)
            size[box_id] = nbytes
    load = [0] * len(held)
    writer = {}
    for box_id in sorted(holders, key=lambda each: (-size[each], each)):
        writer[box_id] = min(holders[box_id], key=lambda rank: (load[rank], rank))
        load[writer[box_id]] += size[box_id]
    return writer


def pieces_of(held: Boxes, share: Iterable[str], limit: int = FILE_BYTES) -> list[TensorPiece]:
    """Cut some of this rank's boxes into pieces of at most `limit` bytes, which fit a data file.

    Raises:
        InputInvalid: a tensor's name or dtype is not supported.
    """
    return [piece for key in share for piece in _pieces(held[key], limit)]


def write(
    staging: Path, rank: int, pieces: Sequence[TensorPiece], *, durable: bool, first: int = 0
) -> dict[str, Any]:
    """Write a rank's pieces into `staging`; return the report to the leader, as JSON.

    `first`: number of its first file.

    Raises:
        OSError: the disk is full.
    """
    return report_in_json(*write_files(staging, rank, pieces, durable=durable, first=first))


def part_of(rank: int, told: Mapping[str, Any]) -> Part:
    """Decode the report of `write`."""
    placed = []
    for fqn, dtype, whole, start, shape, digest, file, offset in told["placed"]:
        box, taken = Box(tuple(start), tuple(shape)), bytes.fromhex(digest)
        placed.append(PlacedPiece(fqn, dtype, tuple(whole), box, taken, file, offset))
    files = {name: DataFile(**file) for name, file in told["files"].items()}
    return Part(rank, files, placed, [])


def read(checkpoint: Checkpoint, held: Boxes, mapped: MappedFiles | None = None) -> None:
    """Fill this rank's boxes; dtypes and shapes are those of the checkpoint.

    Args:
        checkpoint: as opened.
        held: the boxes to fill.
        mapped: the data files, where they are in shared memory; parts on another host are left out.

    Raises:
        CheckpointDamaged: bytes are missing.
    """
    boxes_held = held.values()
    parts = [part for box in boxes_held for part in _parts(checkpoint, box)]
    threads = copiers.count(sum(part.out.numel() * part.out.element_size() for part in parts))
    for box in boxes_held:
        advise_huge_pages(box.local)
    copiers.settle(box.local for box in boxes_held)
    with ExitStack() as opened:
        filling = []
        for _ in range(threads):
            files = opened.enter_context(Files(checkpoint.folder))
            filling.append(_Filler(reader_of(checkpoint.index, files, mapped)))
        copiers.in_turn(filling, parts)
        for each in filling:
            each.finish()


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a box to fill: its entry's row, its first logical index, and its memory."""

    row: int
    start: Shape
    out: torch.Tensor


def _parts(checkpoint: Checkpoint, box: boxes.LocalBox) -> Iterable[_Part]:
    row, local = checkpoint.index.row_of(*HOOK.entry_key(box.key)), box.local
    for cut in boxes_within(tuple(local.shape), local.element_size(), PIECE_BYTES):
        yield _Part(row, _sum(box.offset, cut.start), narrow(local, cut))


class _Filler:
    """Reads parts, through buffers of its own."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._staging = reader, Staging()

    def __call__(self, part: _Part) -> None:
        """Fill one; on a device it is there after `finish`."""
        self._staging.fill(part.out, partial(self._read, part))

    def finish(self) -> None:
        """Wait for pending copies."""
        self._staging.finish()

    def _read(self, part: _Part, box: Box, array: NDArray[np.generic]) -> None:
        self._reader.read_into(part.row, Box(_sum(part.start, box.start), box.shape), array)


class ValueDecoder:
    """Decodes values of a checkpoint's trainer.json, including tensors inside of them."""

    def __init__(self, checkpoint: Checkpoint, mapped: MappedFiles | None = None) -> None:
        """Prepare; a file is opened only for a value with a tensor."""
        self._checkpoint = checkpoint
        self._mapped = mapped

    def __call__(self, encoded: Any) -> Any:
        """Decode one.

        Raises:
            InputInvalid: the checkpoint lacks a tensor inside of it.
            CheckpointDamaged: its bytes are missing.
        """
        if not isinstance(encoded, dict | list):
            return encoded
        return plain.decode(encoded, _Inside(self._checkpoint, self._mapped))


class _Inside(dict[str, torch.Tensor]):
    """Tensors inside of values, read when they are asked for."""

    def __init__(self, checkpoint: Checkpoint, mapped: MappedFiles | None) -> None:
        super().__init__()
        self._checkpoint = checkpoint
        self._mapped = mapped

    def __missing__(self, fqn: str) -> torch.Tensor:
        index = self._checkpoint.index
        row = index.row_of(*HOOK.entry_key(fqn))
        entry = index.entries[row]
        out = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype))
        with Files(self._checkpoint.folder) as files:
            reader = reader_of(index, files, self._mapped)
            reader.read_into(row, Box.whole(entry.shape), as_array(out))
        return out


def _pieces(box: boxes.LocalBox, limit: int) -> Iterable[TensorPiece]:
    local = box.local
    if dtype_name(local.dtype) not in dtypes.CARRIED:
        raise InputInvalid(
            f"checkpoint: {box.key!r} is {local.dtype}, which a checkpoint does not store; it "
            f"carries {', '.join(sorted(dtypes.CARRIED))}."
        )
    for cut in boxes_within(tuple(local.shape), local.element_size(), limit):
        yield TensorPiece(
            fqn=box.key,
            key=HOOK.entry_key(box.key),
            dtype=dtype_name(local.dtype),
            whole=box.whole,
            box=Box(_sum(box.offset, cut.start), cut.shape),
            local=narrow(local, cut),
        )


def _sum(one: Shape, other: Shape) -> Shape:
    """Add two indices."""
    return tuple(a + b for a, b in zip(one, other, strict=True))
