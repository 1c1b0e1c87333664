"""Whatever is wrong with a checkpoint is found, and the tensor named; a good one is good."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.universal.sources import foreign
from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal import folder, missing, record
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.folder import COMMIT, MANIFEST, open_checkpoint
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.index import (
    COLUMNS,
    Column,
    Index,
    Segment,
    TensorEntry,
    build,
)
from wattmesh.reconfig.universal.verify import Result, hash_in_background, verify

DATA = "data-00000.safetensors"
SMALL = (MANIFEST, COMMIT, "index.json", "index.safetensors", "trainer.json")


@pytest.fixture
def physical(tmp_path: Path) -> Path:
    """A physical checkpoint."""
    (tmp_path / "src").mkdir()
    return write_physical(foreign.write(tmp_path / "src")[0], tmp_path / "uc")


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    """A virtual checkpoint, on record."""
    (tmp_path / "foreign").mkdir()
    uc = write_virtual(foreign.write(tmp_path / "foreign")[0], tmp_path / "virtual")
    hash_in_background(uc)
    return uc


def flip(path: Path, at: int | None = None) -> None:
    """Change one bit."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size // 2 if at is None else at)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def truncate(path: Path) -> None:
    """Take the last half away."""
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    """Add a byte."""
    os.truncate(path, path.stat().st_size + 1)


DAMAGES = (flip, truncate, lengthen, Path.unlink)


def tensors(result: Result) -> set[tuple[str, str]]:
    """What the damage touches."""
    return {(each.tensor, each.state) for each in result.damage if each.tensor}


def test_a_good_one_is_good(physical: Path, virtual: Path) -> None:
    """Both kinds; every segment is read."""
    for uc in (physical, virtual):
        result = verify(uc, jobs=2)
        assert (result.good, result.damage) == (True, ())
        assert result.segments == len(open_checkpoint(uc).index.segments)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*SMALL, DATA])
def test_every_file_of_a_physical_one(
    physical: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """One bit, half of it, one byte more, all of it."""
    damage(physical / name)
    result = verify(physical)
    assert not result.good
    assert name in str(result.damage[0]) or MANIFEST in str(result.damage[0])


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", [*SMALL, "verified.json", "hashes.safetensors", *(f"files/{n}" for n in foreign.FILES)]
)
def test_every_file_of_a_virtual_one(
    virtual: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """The same; without its record it is unverified, which is not good either."""
    damage(virtual / name)
    result = verify(virtual)
    assert not result.good
    assert result.damage or name == "verified.json"


def test_each_damaged_segment_is_named(physical: Path) -> None:
    """One bit in the middle of each segment in turn: its tensor, its box, nothing else."""
    index = open_checkpoint(physical).index
    for row in range(len(index.segments)):
        entry = index.entries[int(index.segments.entry[row])]
        at = int(index.segments.offset[row] + index.segments.nbytes[row] // 2)
        flip(physical / DATA, at)
        (found,) = verify(physical).damage
        assert (found.tensor, found.state, found.file) == (*entry.key, DATA)
        assert str(index.segments.box(row, entry)) in found.box
        assert "differ from their digest" in found.what
        flip(physical / DATA, at)
    assert verify(physical).good


@pytest.mark.parametrize(
    "record_of",
    [
        lambda digest: digest[:-1],
        lambda digest: np.concatenate([digest, digest[:1]]),
        lambda digest: digest[:, :1],
        lambda digest: digest.reshape(-1),
    ],
    ids=["one too few", "one too many", "half of each", "in one row"],
)
def test_a_record_that_has_not_one_digest_per_segment_verifies_nothing(
    virtual: Path, record_of: Callable[[Column], Column]
) -> None:
    """Well sealed: verified.json vouches for these digests and for this manifest."""
    opened = open_checkpoint(virtual)
    digest = record.digests(opened)
    assert digest is not None
    record.write(opened, record_of(digest))
    with pytest.raises(CheckpointDamaged, match=r"not one digest for every segment.*--record"):
        record.is_verified(opened)
    (damage,) = verify(virtual).damage
    assert "hashes.safetensors has not one digest for every segment" in str(damage)
    record.write(opened, digest)
    assert verify(virtual).good


def test_a_truncated_file_names_just_what_is_lost(physical: Path) -> None:
    """All damage is listed: every tensor beyond the cut, none before it."""
    index = open_checkpoint(physical).index
    truncate(physical / DATA)
    size = (physical / DATA).stat().st_size
    beyond = index.segments.offset + index.segments.nbytes > size
    lost = {index.entries[row].key for row in index.segments.entry[beyond].tolist()}
    result = verify(physical)
    assert tensors(result) == lost
    (physical / DATA).unlink()
    held = {index.entries[row].key for row in index.segments.entry.tolist()}
    assert tensors(verify(physical)) == held


def test_a_foreign_file_changed_in_secret_is_named(virtual: Path) -> None:
    """Same size, same time of change: only the digest tells."""
    index = open_checkpoint(virtual).index
    row = index.segments_of(index.row_of("half")).start
    path = virtual / index.files[int(index.segments.file[row])]
    before = path.stat()
    flip(path, int(index.segments.offset[row]))
    assert tensors(verify(virtual)) == {("half", "param")}
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    result = verify(virtual)
    assert tensors(result) == {("half", "param")}
    assert len(result.damage) == 1


def test_an_unhashed_one_with_a_broken_file_names_its_tensors(tmp_path: Path) -> None:
    """There is no digest to compare with, but what lies in the file is known."""
    (tmp_path / "src").mkdir()
    source, _ = foreign.write(tmp_path / "src")
    uc = write_virtual(source, tmp_path / "uc")
    lengthen(uc / "files" / foreign.FILES[2])
    assert tensors(verify(uc)) == {("rows", "param"), ("rows", "exp_avg"), ("count", "extra")}


@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), file=st.integers(0, 5))
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_bit_of_any_file(physical: Path, share: float, bit: int, file: int) -> None:
    """Headers, padding, numbers, names: there is no byte that nothing vouches for."""
    path = physical / (*SMALL, DATA)[file]
    data = path.read_bytes()
    at = int(share * len(data))
    path.write_bytes(data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :])
    assert not verify(physical).good
    path.write_bytes(data)
    assert verify(physical).good


def forge(
    uc: Path,
    index: Callable[[Index], Index] = lambda index: index,
    manifest: Callable[[dict[str, Any]], None] = lambda document: None,
) -> None:
    """Change a checkpoint and seal it again, as who wants to deceive would."""
    opened = open_checkpoint(uc)
    for name in SMALL:
        (uc / name).unlink()
    folder.seal(uc, opened.manifest, index(opened.index), opened.trainer)
    document = json.loads((uc / MANIFEST).read_bytes())
    manifest(document)
    text = json.dumps(document).encode()
    (uc / MANIFEST).write_bytes(text)
    (uc / COMMIT).write_text(hashlib.sha256(text).hexdigest())


def without(index: Index, *rows: int) -> Index:
    """The index without some entries."""
    kept = [row for row in range(len(index.entries)) if row not in rows]
    number = {row: at for at, row in enumerate(kept)}
    segments = index.segments.take(np.isin(index.segments.entry, kept))
    entry = np.array([number[row] for row in segments.entry.tolist()], dtype=np.int64)
    return replace(
        index,
        entries=tuple(index.entries[row] for row in kept),
        segments=replace(segments, entry=entry),
    )


def changed(index: Index, column: str, row: int, value: int) -> Index:
    """The index with one number of one segment changed."""
    new = {name: getattr(index.segments, name).copy() for name in COLUMNS}
    new[column][row] = value
    return replace(index, segments=replace(index.segments, **new))


def overlapping(index: Index) -> Index:
    """The index with the first element of the first segment stored a second time."""
    rows = [0, *range(len(index.segments))]
    twice = replace(index, segments=index.segments.take(rows))
    return changed(changed(twice, "shape", 0, 1), "nbytes", 0, 4)


def listed_twice(index: Index) -> Index:
    """The index with its first entry once more at the end, over the same bytes."""
    own = index.segments.take(np.arange(len(index.segments))[index.segments_of(0)])
    again = replace(own, entry=np.full(len(own), len(index.entries), dtype=np.int64))
    columns_ = {
        name: np.concatenate([getattr(index.segments, name), getattr(again, name)])
        for name in (*COLUMNS, "digest")
    }
    entries = (*index.entries, index.entries[0])
    return replace(index, entries=entries, segments=replace(own, **columns_))


def test_a_lost_optimizer_state_is_seen_under_a_new_seal(tmp_path: Path) -> None:
    """By its neighbours, and by bytes that belong to nothing."""
    (tmp_path / "src").mkdir()
    source, _ = foreign.write(tmp_path / "src")
    more = [(name, "exp_avg_sq") for name in ("zero", "rows", "columns", "copied")]
    entries = [
        *source.index.entries,
        *(TensorEntry(name=n, state=s, dtype="float32", shape=()) for n, s in more),
    ]
    (tmp_path / "src" / "steps").write_bytes(bytes(16))
    rows = [
        Segment(entry=key, file="steps", offset=4 * at, box=Box((), ()))
        for at, key in enumerate(more)
    ]
    index = build(entries, [*_segments(source.index), *rows])
    uc = write_physical(foreign.source_of(replace(source, index=index)), tmp_path / "uc")
    assert verify(uc).good
    forge(uc, lambda index: without(index, index.row_of("rows", "exp_avg_sq")))
    told = " ".join(map(str, verify(uc).damage))
    assert "rows lacks the optimizer slots exp_avg_sq" in told
    assert f"of {DATA} belongs to no tensor" in told


def test_bytes_after_the_last_tensor_are_seen_under_a_new_seal(physical: Path) -> None:
    """No tensor, no header and no size vouches for them; its twin without them is good."""
    size = (physical / DATA).stat().st_size
    forge(physical)
    assert verify(physical).good
    forge(physical, manifest=lambda document: document["data"][DATA].update(size=size + 8))
    with (physical / DATA).open("ab") as file:
        file.write(bytes(8))
    (damage,) = verify(physical).damage
    assert (damage.file, damage.tensor) == (DATA, "")
    assert f"byte {size} of" in str(damage)


def _segments(index: Index) -> list[Segment]:
    """The rows of an index, one by one."""
    columns_ = index.segments
    found = []
    for row in range(len(columns_)):
        entry = index.entries[int(columns_.entry[row])]
        box = columns_.box(row, entry)
        found.append(
            Segment(
                entry=entry.key,
                file=index.files[int(columns_.file[row])],
                offset=int(columns_.offset[row]),
                box=box,
                flat=bool(columns_.flat[row]),
                strides=tuple(columns_.strides[row, : len(box.shape)].tolist()),
            )
        )
    return found


def test_groups_of_parameters_may_have_their_own_slots() -> None:
    """Two with fewer are a group; one alone stands out; a slot needs its parameter."""

    def index(*having: str) -> Index:
        entries = [
            TensorEntry(name=name, state=state, dtype="float32", shape=())
            for name, *states in (each.split() for each in having)
            for state in states
        ]
        return build(entries, [])

    assert not list(missing.slots(index("a param m v", "b param m v", "c param", "d param m v")))
    assert not list(missing.slots(index("a param m v", "b param m", "c param m")))
    assert not list(missing.slots(index("a param m v", "b param momentum")))
    assert list(missing.slots(index("a param m v", "b param m", "c param m v")))
    assert list(missing.slots(index("a param m v", "b m v")))


FORGERIES: dict[str, tuple[Callable[[Index], Index], str]] = {
    "a tensor stored twice, in part": (
        overlapping,
        r"zero \(param\): elements 0 to 30 are stored again",
    ),
    "a tensor listed twice": (listed_twice, "index.json lists a tensor twice"),
    "beyond the file": (
        lambda index: changed(index, "offset", 0, 1 << 40),
        r"zero \(param\) .*reaches to byte",
    ),
    "beyond all numbers": (
        lambda index: changed(index, "offset", 0, (1 << 63) - 1),
        r"zero \(param\) .*reaches to byte",
    ),
    "absolute": (lambda index: replace(index, files=("/etc/passwd",)), "/etc/passwd"),
    "climbing": (lambda index: replace(index, files=("../../etc/passwd",)), "etc/passwd"),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_index_is_refused(
    physical: Path, forgery: tuple[Callable[[Index], Index], str]
) -> None:
    """However well it is sealed."""
    change, words = forgery
    forge(physical, change)
    result = verify(physical)
    assert not result.good
    assert re.search(words, " ".join(map(str, result.damage)))


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside", "in/../../outside"])
def test_a_path_out_of_the_folder_is_never_followed(physical: Path, name: str) -> None:
    """Even when index and manifest agree on it."""
    shutil.copy(physical / DATA, physical.parent / "outside")

    def rename(document: dict[str, Any]) -> None:
        document["data"] = {name: document["data"][DATA]}

    forge(physical, lambda index: replace(index, files=(name,)), rename)
    result = verify(physical)
    assert "only plain relative paths" in str(result.damage[0])
    with pytest.raises(CheckpointDamaged):
        open_checkpoint(physical)


def test_links_and_pipes_are_no_data(physical: Path, virtual: Path) -> None:
    """A linked file, a linked folder on the way, a pipe that would be waited for for ever."""
    real = physical.parent / "real"
    (physical / DATA).rename(real)
    (physical / DATA).symlink_to(real)
    assert "no plain file" in str(verify(physical).damage[0])
    (physical / DATA).unlink()
    os.mkfifo(physical / DATA)
    assert "no plain file" in str(verify(physical).damage[0])
    (virtual / "files").rename(virtual.parent / "moved")
    (virtual / "files").symlink_to(virtual.parent / "moved")
    assert "symbolic link" in str(verify(virtual).damage[0])


def test_another_version_is_not_guessed_at(physical: Path) -> None:
    """It names both versions and what to use."""
    forge(physical, manifest=lambda document: document.update(version=2))
    (found,) = verify(physical).damage
    assert "version 2" in str(found)
    assert "use the wattmesh that wrote it" in str(found)


def test_a_digest_of_other_bytes_is_seen(physical: Path) -> None:
    """Sabotaged twin: with the digests exchanged, good bytes count as damaged."""

    def exchange(index: Index) -> Index:
        digest = index.segments.digest
        assert digest is not None
        return replace(index, segments=replace(index.segments, digest=digest[::-1].copy()))

    forge(physical, exchange)
    assert len(verify(physical).damage) >= len(open_checkpoint(physical).index.segments) - 1
