"""The folder on disk: what is sealed reads back equal, what was touched is named."""

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.universal.oracle import stored
from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal import columns
from wattmesh.reconfig.universal.folder import (
    COMMIT,
    MANIFEST,
    TRAINER,
    CheckpointKind,
    DataFile,
    Manifest,
    open_checkpoint,
    seal,
)
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.index import COLUMNS, Index, Segment, TensorEntry, build
from wattmesh.reconfig.universal.index.rules import ExpertStack, SubBlocks, VocabPad

SMALL = (MANIFEST, COMMIT, TRAINER, columns.NAMES, columns.NUMBERS)


def rich_index() -> Index:
    """Several dtypes, ranks, rules, a scalar, a tied name, flat ranges and digests."""
    entries = [
        TensorEntry(name="a", state="param", dtype="bfloat16", shape=(4, 6), rule=VocabPad(0, 4)),
        TensorEntry(
            name="a", state="exp_avg", dtype="float32", shape=(4, 6), rule=ExpertStack(0, (1, 0))
        ),
        TensorEntry(name="a", state="step", dtype="float32", shape=()),
        TensorEntry(
            name="b", state="param", dtype="float64", shape=(2,), rule=SubBlocks(0, ((1, 1),))
        ),
    ]
    digest = bytes(range(240, 256))
    boxes: list[tuple[TensorEntry, Box, bool]] = [
        (entries[0], Box((0, 0), (4, 6)), False),
        (entries[1], Box((0,), (24,)), True),
        (entries[2], Box((), ()), False),
        (entries[3], Box((0,), (2,)), False),
    ]
    segments = [
        Segment(entry=e.key, file=f"part-{n % 2}", offset=n, box=box, flat=flat, digest=digest)
        for n, (e, box, flat) in enumerate(boxes)
    ]
    return build(entries, segments, tied={"c": "b"})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A sealed checkpoint with one data file."""
    source = stored((4, 6), (Box((0, 0), (2, 6)), Box((2, 0), (2, 6))))
    (tmp_path / "f").write_bytes(source.data)
    manifest = Manifest(
        kind=CheckpointKind.PHYSICAL, data={"f": DataFile(size=len(source.data))}, run="r"
    )
    seal(tmp_path, manifest, source.index, {"values": {"lr": 0.1}})
    return tmp_path


def test_what_is_sealed_reads_back_equal(checkpoint: Path) -> None:
    """Index, trainer and manifest; nothing is lost between the two files of the index."""
    found = open_checkpoint(checkpoint)
    assert found.trainer == {"values": {"lr": 0.1}}
    assert (found.manifest.run, found.manifest.kind, found.manifest.hashed) == (
        "r",
        "physical",
        False,
    )
    index = rich_index()
    again = columns.read(columns.names_to_bytes(index), columns.numbers_to_bytes(index), "here")
    assert (again.entries, again.files, again.tied) == (index.entries, index.files, index.tied)
    for name in (*COLUMNS, "digest"):
        assert np.array_equal(getattr(again.segments, name), getattr(index.segments, name))
    assert again.row_of("c") == 3
    digest = again.segments.digest
    assert digest is not None
    assert digest.astype(">i8").tobytes() == bytes(range(240, 256)) * 4


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Cut a file in half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.parametrize("name", SMALL)
def test_damage_to_a_small_file_is_named(
    checkpoint: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """One bit, half a file, a whole file."""
    damage(checkpoint / name)
    named = f"{MANIFEST}|{COMMIT}" if name in (MANIFEST, COMMIT) else name
    with pytest.raises(CheckpointDamaged, match=named):
        open_checkpoint(checkpoint)


def test_a_data_file_of_another_size_or_kind_is_named(checkpoint: Path) -> None:
    """Longer, shorter, gone, or a link: seen without reading it."""
    whole = (checkpoint / "f").read_bytes()
    for data in (whole + b"\0", whole[:-1]):
        (checkpoint / "f").write_bytes(data)
        with pytest.raises(
            CheckpointDamaged, match=f"f has {len(data)} bytes, not the {len(whole)}"
        ):
            open_checkpoint(checkpoint)
    (checkpoint / "f").unlink()
    with pytest.raises(CheckpointDamaged, match="f cannot be read"):
        open_checkpoint(checkpoint)
    (checkpoint / "g").write_bytes(whole)
    (checkpoint / "f").symlink_to("g")
    with pytest.raises(CheckpointDamaged, match="f is no plain file"):
        open_checkpoint(checkpoint)


def test_a_virtual_file_that_was_touched_is_named(tmp_path: Path) -> None:
    """Same size, same bytes, another time of change: it is not what was indexed."""
    source = stored((4, 6), (Box.whole((4, 6)),))
    (tmp_path / "f").write_bytes(source.data)
    stat = (tmp_path / "f").stat()
    line = DataFile(size=stat.st_size, mtime_ns=stat.st_mtime_ns, inode=stat.st_ino)
    seal(tmp_path, Manifest(kind=CheckpointKind.VIRTUAL, data={"f": line}), source.index, {})
    open_checkpoint(tmp_path)
    shutil.copy(tmp_path / "f", tmp_path / "g")
    (tmp_path / "g").replace(tmp_path / "f")
    with pytest.raises(CheckpointDamaged, match="f was changed or replaced since it was indexed"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2, this wattmesh reads"),
        ({"format": "other"}, "'other' version 1"),
        ({"kind": "astral"}, "is no manifest"),
        ({"surplus": 1}, "is no manifest"),
        ({"data": {}}, "the index names 'f', manifest.json does not"),
        ({"data": {"f": {"size": 10}}}, "f has 99 bytes, not the 10"),
        ({"data": {"f": {"size": 99}, "../f": {"size": 1}}}, "plain relative paths"),
        ({"data": []}, "is no manifest"),
    ],
)
def test_a_forged_manifest_is_refused(
    checkpoint: Path, change: dict[str, Any], message: str
) -> None:
    """With a COMMIT that matches it: another version, other files, nonsense."""
    document = {**json.loads((checkpoint / MANIFEST).read_bytes()), **change}
    forge(checkpoint, document)
    with pytest.raises(CheckpointDamaged, match=message):
        open_checkpoint(checkpoint)


def test_an_index_that_reaches_beyond_its_file_is_refused(tmp_path: Path) -> None:
    """Even where every seal was made for it."""
    source = stored((4, 6), (Box.whole((4, 6)),))
    (tmp_path / "f").write_bytes(source.data[:50])
    seal(
        tmp_path,
        Manifest(kind=CheckpointKind.PHYSICAL, data={"f": DataFile(size=50)}),
        source.index,
        {},
    )
    with pytest.raises(CheckpointDamaged, match=r"w \(param\) reaches to byte 99 of f"):
        open_checkpoint(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_spoilt_indexes_are_refused_or_equal(data: st.DataObject) -> None:
    """Any byte changed or cut off in either file: one kind of error, or an index."""
    index = rich_index()
    parts = [columns.names_to_bytes(index), columns.numbers_to_bytes(index)]
    which = data.draw(st.integers(0, 1))
    spoilt = bytearray(parts[which])
    if data.draw(st.booleans()):
        spoilt = spoilt[: data.draw(st.integers(0, len(spoilt)))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    parts[which] = bytes(spoilt)
    with suppress(CheckpointDamaged):
        assert columns.read(parts[0], parts[1], "here").files


def forge(folder: Path, document: dict[str, Any]) -> None:
    """Write a manifest and a COMMIT that matches it."""
    text = json.dumps(document, sort_keys=True).encode()
    (folder / MANIFEST).write_bytes(text)
    (folder / COMMIT).write_text(hashlib.sha256(text).hexdigest())
