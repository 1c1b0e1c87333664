"""Indexes checkpoints of the job's own checkpointer.

`attach(..., save=...)`: at a save step every rank calls `save`, which writes, or starts to write, a
folder of torch.distributed.checkpoint. When all ranks' writes have ended, the leader links the
files, indexes the tensors that the session names, and adds the session's other state.

Invariant: the index holds exactly the tensors of the job's state, with proven cover; it is
unverified until its bytes were compared with the digest taken in memory, and hashed.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wattmesh import durable
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.state.memory import as_array, dtype_name
from wattmesh.reconfig.universal import against, folder, record, verify
from wattmesh.reconfig.universal.convert.origin import check_unchanged
from wattmesh.reconfig.universal.convert.virtual import FILES, link
from wattmesh.reconfig.universal.files.staging import Fence, staged
from wattmesh.reconfig.universal.folder import CheckpointKind, DataFile, Manifest
from wattmesh.reconfig.universal.index import cover
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.index import Index, Segment, TensorEntry, build
from wattmesh.reconfig.universal.index.names import HOOK, Names
from wattmesh.reconfig.universal.sources.dcp.dcp import open_dcp
from wattmesh.reconfig.universal.sources.source import Source, joined

BESIDE = "beside.bin"
"""File of the tensors inside of plain values and extra state, which no foreign file has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A save of the job's checkpointer, complete or under way.

    Attributes:
        folder: of torch.distributed.checkpoint; the same on every rank.
        future: this rank's, of an async save; None when the folder is complete.
        names: maps the checkpointer's tensor names.
    """

    folder: str | os.PathLike[str]
    future: Future[Any] | None = None
    names: Names = HOOK

    @property
    def ready(self) -> bool:
        """Tell whether this rank's write has ended, successfully or not."""
        return self.future is None or self.future.done()


@dataclass(frozen=True, slots=True)
class RequiredTensors:
    """The required tensors of an index: dtype and shape by the session's names."""

    tensors: Mapping[str, tuple[str, tuple[int, ...]]]

    @classmethod
    def of(cls, told: list[dict[str, Any]]) -> "RequiredTensors":
        """Merge every rank's names."""
        pairs = (pair for part in told for pair in part.items())
        return cls({name: (str(kind), tuple(shape)) for name, (kind, shape) in pairs})


def described(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Describe a rank's tensors as JSON: dtype and whole shape."""
    return {name: [dtype_name(each.dtype), list(each.shape)] for name, each in tensors.items()}


def publish(
    written: Written,
    target: Path,
    *,
    wanted: RequiredTensors,
    beside: Mapping[str, torch.Tensor],
    about: Manifest,
    trainer: Mapping[str, Any],
    fence: Fence,
) -> Path:
    """Publish a virtual checkpoint of a save. Called on the leader.

    Args:
        written: a complete save.
        target: its folder, which must not exist.
        wanted: the required tensors.
        beside: tensors that only this process has.
        about: run, attempt and logical digest; the rest is filled in.
        trainer: trainer.json.
        fence: raises Fenced when a newer attempt exists.

    Raises:
        InputInvalid: the folder lacks a tensor, is on another file system, or is damaged.
        CheckpointDamaged: a file is missing.
        OSError: the disk is full.
    """
    source = open_dcp(Path(written.folder), Declared(), written.names)
    index = _index_of_state(source, wanted)
    with staged(target, fence) as staging:
        folders = link(source, staging / FILES)
        data = {
            f"{FILES}/{name}": DataFile(size=at.size, mtime_ns=at.mtime_ns, inode=at.inode)
            for name, at in source.files.items()
        }
        index = replace(index, files=tuple(f"{FILES}/{name}" for name in index.files))
        if beside:
            data[BESIDE], small = _write_beside(staging / BESIDE, beside)
            index = _concatenated(index, small)
        cover.prove(index)
        origin = {"kind": source.kind, "folder": str(source.folder.absolute())}
        manifest = replace(about, kind=CheckpointKind.VIRTUAL, data=data, source=origin)
        folder.seal(staging, manifest, index, trainer)
        for each in folders:
            durable.fsync_folder(each)
        check_unchanged(source)
    return target


def prove(path: Path, *, gentle: bool) -> bool:
    """Compare an unverified checkpoint with the digest taken in memory, and record its digests.

    Returns False when it is verified already.

    Raises:
        CheckpointDamaged: its bytes differ from what was in memory, or are missing.
        InputInvalid: the digests cannot be recorded.
    """
    checkpoint = folder.open_checkpoint(path)
    if record.is_verified(checkpoint):
        return False
    if against.matches_memory(checkpoint, jobs=1 if gentle else 0) is False:
        raise CheckpointDamaged(
            f"checkpoint {path.name}: the files that the job's own checkpointer wrote do not hold "
            "what was in memory."
        )
    result = verify.verify(path, jobs=1 if gentle else 0, record_digests=True, gentle=gentle)
    if not result.good:
        raise CheckpointDamaged(f"checkpoint {path.name}: {result.damage[0]}.")
    return True


def is_verified(path: Path) -> bool:
    """Tell whether a published checkpoint is verified; a damaged one is not."""
    try:
        return record.is_verified(folder.open_sealed(path))
    except CheckpointDamaged:
        return False


def _index_of_state(source: Source, wanted: RequiredTensors) -> Index:
    index, rows = source.index, []
    for name, (dtype, shape) in wanted.tensors.items():
        key = HOOK.entry_key(name)
        row = index.rows.get((index.tied.get(key[0], key[0]), key[1]))
        if row is None:
            raise InputInvalid(
                f"{source.folder} holds no {key[0]} ({key[1]}), which belongs to the job's state; "
                "let the checkpointer save it, or leave the saving to the session."
            )
        entry = index.entries[row]
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise InputInvalid(
                f"{source.folder}: {entry} is {entry.dtype} {entry.shape}, the job has {dtype} "
                f"{shape}; a checkpoint to resume from keeps dtypes and shapes."
            )
        rows.append(row)
    kept = sorted(set(rows))
    segments = index.segments.take(np.isin(index.segments.entry, kept))
    entries = np.searchsorted(np.array(kept, dtype=np.int64), segments.entry)
    return Index(
        entries=tuple(index.entries[row] for row in kept),
        files=index.files,
        segments=replace(segments, entry=entries, digest=None),
        tied=index.tied,
    )


def _write_beside(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[DataFile, Index]:
    """Write small tensors one after the other; return the file's line and their index."""
    data, entries, segments = bytearray(), [], []
    for name, tensor in tensors.items():
        key, shape = HOOK.entry_key(name), tuple(tensor.shape)
        dtype = dtype_name(tensor.dtype)
        entries.append(TensorEntry(name=key[0], state=key[1], dtype=dtype, shape=shape))
        if tensor.numel():
            box = Box.whole(shape)
            segments.append(Segment(entry=key, file=BESIDE, offset=len(data), box=box))
        data += as_array(tensor).tobytes()
    durable.write_new(path, bytes(data))
    look = path.stat()
    line = DataFile(size=look.st_size, mtime_ns=look.st_mtime_ns, inode=look.st_ino)
    return line, build(entries, segments)


def _concatenated(index: Index, small: Index) -> Index:
    moved = replace(
        small.segments,
        entry=small.segments.entry + len(index.entries),
        file=small.segments.file + len(index.files),
    )
    return Index(
        entries=(*index.entries, *small.entries),
        files=(*index.files, *small.files),
        segments=joined([index.segments, moved]),
        tied=index.tied,
    )


Save = Callable[[Any, int], Written]
"""The job's own checkpointer: called with the state and the step, on every rank."""
