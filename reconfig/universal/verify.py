"""Verifies a checkpoint: reads every byte and compares it with the digests of its writer.

`look` checks what needs no data (seal, sizes, cover, slots); `verify` also reads everything. Both
list all damage and the tensors that are affected.

Invariant: a checkpoint is good only if every byte was read and compared, or put on record.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattmesh import durable
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal import folder, missing, record, replicas
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files.hashing import SegmentDigests, hash_segments
from wattmesh.reconfig.universal.files.staging import Progress, silent
from wattmesh.reconfig.universal.folder import Checkpoint, CheckpointKind
from wattmesh.reconfig.universal.index import cover
from wattmesh.reconfig.universal.index.index import Column, Segments

NAMED_PER_FILE = 8
"""Tensors named for a file that cannot be read at all; the others are counted."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One fault.

    Attributes:
        what: a sentence.
        file: relative path; "" when it is not about one file.
        tensor, state: the affected tensor; "" when it is not about one tensor.
        box: its affected elements as an index expression, of the flattened tensor after "flat"; ""
            for all of it.
    """

    what: str
    file: str = ""
    tensor: str = ""
    state: str = ""
    box: str = ""

    def __str__(self) -> str:
        """Format for the screen, the tensor first."""
        where = f"{self.tensor} ({self.state}) {self.box}".rstrip() if self.tensor else ""
        return ": ".join(each for each in (where, self.what) if each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a verification.

    Attributes:
        damage: every fault; empty for a good checkpoint.
        hashed: whether there were digests to compare with.
        recorded: whether the digests were recorded now.
        nbytes: bytes that were read.
    """

    damage: tuple[Damage, ...]
    hashed: bool = False
    recorded: bool = False
    segments: int = 0
    nbytes: int = 0

    @property
    def good(self) -> bool:
        """Tell whether every byte is as it was written, or is on record now."""
        return not self.damage and (self.hashed or self.recorded)


def verify(
    path: Path,
    *,
    jobs: int = 0,
    progress: Progress = silent,
    record_digests: bool = False,
    gentle: bool = False,
) -> Result:
    """Verify a checkpoint.

    Args:
        path: its folder.
        jobs: threads; 0 for as many as there are CPUs, at most 4.
        progress: called with the bytes read since its last call, from several threads.
        record_digests: hash an unverified virtual checkpoint, which makes it verified.
        gentle: use idle CPU and disk priority.

    Raises:
        InputInvalid: the digests cannot be recorded, or the allowance is used up.
    """
    allowance = Allowance()
    try:
        checkpoint = folder.open_sealed(path, allowance)
        expected = record.digests(checkpoint)
    except CheckpointDamaged as error:
        return Result(damage=(Damage(str(error)),))
    damage = list(look(checkpoint, allowance))
    if expected is None and (damage or not record_digests):
        touched = [
            each for name in _wholly_damaged(damage) for each in _tensors_in_file(checkpoint, name)
        ]
        return Result(damage=(*damage, *touched))
    index = checkpoint.index
    found = hash_segments(
        path, index.files, index.segments, jobs=jobs, progress=progress, gentle=gentle
    )
    if expected is None:
        return _recorded(checkpoint, found)
    return Result(
        damage=(*damage, *_compare(checkpoint, expected, found)),
        hashed=True,
        segments=len(index.segments),
        nbytes=int(index.segments.nbytes.sum()),
    )


def hash_in_background(path: Path) -> Result:
    """Hash a virtual checkpoint at idle priority, which makes it verified.

    Raises:
        InputInvalid: the digests cannot be recorded.
    """
    return verify(path, jobs=1, record_digests=True, gentle=True)


def look(checkpoint: Checkpoint, allowance: Allowance | None = None) -> Iterator[Damage]:
    """Yield damage that shows without reading data; `allowance`: what is left of it."""
    yield from _files(checkpoint)
    try:
        cover.prove(checkpoint.index, allowance or Allowance())
    except InputInvalid as error:
        yield Damage(str(error))
    yield from (Damage(each) for each in missing.slots(checkpoint.index))


def _files(checkpoint: Checkpoint) -> Iterator[Damage]:
    """Check every data file, and that header and segments cover all of its bytes."""
    manifest, index = checkpoint.manifest, checkpoint.index
    for name in index.files:
        if name not in manifest.data:
            yield Damage(f"the index names {name!r}, {folder.MANIFEST} does not", name)
    foreign = manifest.kind is CheckpointKind.VIRTUAL
    for name, expected in manifest.data.items():
        try:
            folder.check_file(checkpoint.folder, name, expected, foreign=foreign)
            if not foreign:
                folder.check_header(checkpoint, name)
                _check_accounted(checkpoint, name)
        except CheckpointDamaged as error:
            yield Damage(str(error), name)
    yield from _segments_past_end(checkpoint)


def _check_accounted(checkpoint: Checkpoint, name: str) -> None:
    """Refuse a physical data file with bytes that neither its header nor a segment covers.

    Raises:
        CheckpointDamaged: it has some; a change of them would go unnoticed.
    """
    expected = checkpoint.manifest.data[name]
    segments = checkpoint.index.segments
    files = checkpoint.index.files
    mine = segments.file == (files.index(name) if name in files else -1)
    begin = np.concatenate([[0], segments.offset[mine]])
    end = np.concatenate([[expected.header_nbytes], segments.offset[mine] + segments.nbytes[mine]])
    order = np.argsort(begin, kind="stable")
    reached = np.maximum.accumulate(end[order])
    gaps = np.flatnonzero(begin[order][1:] > reached[:-1])
    if len(gaps) or reached[-1] < expected.size:
        at = int(reached[gaps[0]] if len(gaps) else reached[-1])
        raise CheckpointDamaged(
            f"checkpoint {checkpoint.folder.name}: byte {at} of {name} belongs to no tensor."
        )


def _wholly_damaged(damage: Iterable[Damage]) -> list[str]:
    return list(dict.fromkeys(each.file for each in damage if each.file and not each.tensor))


def _tensors_in_file(checkpoint: Checkpoint, name: str) -> Iterator[Damage]:
    index = checkpoint.index
    if name not in index.files:
        return
    rows = np.unique(index.segments.entry[index.segments.file == index.files.index(name)])
    for row in rows[:NAMED_PER_FILE].tolist():
        entry = index.entries[row]
        yield Damage(f"lies in {name}", name, entry.name, entry.state)
    if len(rows) > NAMED_PER_FILE:
        yield Damage(f"{len(rows) - NAMED_PER_FILE} more tensors lie in {name}", name)


def _segments_past_end(checkpoint: Checkpoint) -> Iterator[Damage]:
    index, data = checkpoint.index, checkpoint.manifest.data
    sizes = [data[name].size if name in data else 0 for name in index.files]
    ends = index.segments.offset + index.segments.nbytes
    limits = np.array(sizes, dtype=np.int64)[index.segments.file]
    for row in np.flatnonzero((ends > limits) | (ends < 0)).tolist():
        name = index.files[int(index.segments.file[row])]
        yield _at(checkpoint, row, f"reaches to byte {ends[row]} of {name}, which ends before")


def _compare(checkpoint: Checkpoint, expected: Column, found: SegmentDigests) -> Iterator[Damage]:
    """List every segment whose bytes differ or cannot be read."""
    index = checkpoint.index
    unreadable = dict(found.unreadable)
    differs = (expected != found.digest).any(axis=1)
    differs[list(unreadable)] = True
    for row in np.flatnonzero(differs).tolist():
        name = index.files[int(index.segments.file[row])]
        yield _at(checkpoint, row, unreadable.get(row, f"bytes in {name} differ from their digest"))


def _recorded(checkpoint: Checkpoint, found: SegmentDigests) -> Result:
    """Record the digests, unless the files show damage without them."""
    damage = [_at(checkpoint, row, reason) for row, reason in found.unreadable]
    damage += _differing_replicas(checkpoint)
    # Foreign files may never have been fsynced, and the record must stay true after a crash.
    _sync(checkpoint)
    damage += list(_files(checkpoint))  # none changed while it was read
    segments = checkpoint.index.segments
    if not damage:
        record.write(checkpoint, found.digest)
    return Result(
        damage=tuple(damage),
        recorded=not damage,
        segments=len(segments),
        nbytes=int(segments.nbytes.sum()),
    )


def _differing_replicas(checkpoint: Checkpoint) -> Iterable[Damage]:
    for row in replicas.differing(checkpoint.index, checkpoint.folder):
        yield _at(checkpoint, row, "differs from another copy of the same box")


def _sync(checkpoint: Checkpoint) -> None:
    for name in checkpoint.manifest.data:
        durable.fsync_file(checkpoint.folder / name)


def _at(checkpoint: Checkpoint, row: int, what: str) -> Damage:
    segments: Segments = checkpoint.index.segments
    entry = checkpoint.index.entries[int(segments.entry[row])]
    flat = "flat " if segments.flat[row] and len(entry.shape) != 1 else ""
    return Damage(
        what,
        checkpoint.index.files[int(segments.file[row])],
        entry.name,
        entry.state,
        f"{flat}{segments.box(row, entry)}",
    )
