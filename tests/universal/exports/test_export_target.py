"""The folder of an export: whole or not there, whatever goes wrong."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.universal.exports.scattered import bits, scatter, small_model
from tests.universal.oracle import SHAPES, elements
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.exports import huggingface
from wattmesh.reconfig.universal.exports.stream import blocks, pieces
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.box import Box


@given(SHAPES, st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_blocks_follow_each_other_row_by_row(shape: tuple[int, ...], count: int) -> None:
    """Blocks are no larger than asked for, and their elements in a row are the tensor's."""
    found = list(blocks(Box.whole(shape), count))
    assert all(block.count <= count for block in found)
    walked = [number for block in found for number in elements(block, shape)]
    assert walked == elements(Box.whole(shape), shape)


@pytest.mark.parametrize("size", [1, 10, 100, 1 << 20])
def test_pieces_are_the_bytes_of_the_tensor(tmp_path: Path, size: int) -> None:
    """However small the pieces and however scattered the source, the bytes in a row are equal."""
    tensors = small_model()
    index = scatter(tmp_path, tensors)
    with Files(tmp_path) as files:
        reader = Reader(index, files)
        for row, entry in enumerate(index.entries):
            found = b"".join(bytes(piece) for piece in pieces(reader, row, size=size))
            assert found == bits(tensors[entry.key])


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """A size limit on files stands for the full disk: a write fails half way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def stranger() -> Iterator[None]:
    """Work as a user who owns nothing, where we are root and may write anywhere."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


def export(source: Path, target: Path) -> None:
    """Export a small model."""
    index = scatter(source, small_model())
    with Files(source) as files:
        huggingface.export(index, files, target)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """One sentence says what to do, and the half-written folder is gone."""
    (tmp_path / "disk").mkdir()
    index = scatter(tmp_path / "source", small_model())
    with Files(tmp_path / "source") as files, full_disk(1000):  # noqa: SIM117
        with pytest.raises(
            InputInvalid, match=r"out was not written \(File too large\); make room"
        ):
            huggingface.export(index, files, tmp_path / "disk" / "out")
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """One sentence says so, and nothing is left."""
    index = scatter(tmp_path / "source", small_model())
    (tmp_path / "theirs").mkdir(mode=0o555)
    with Files(tmp_path / "source") as files:
        files.opened("shards/data.bin")
        with stranger(), pytest.raises(InputInvalid, match="name a folder that you may write"):
            huggingface.export(index, files, tmp_path / "theirs" / "out")
    assert list((tmp_path / "theirs").iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """The parent is not made up: a mistyped path is told."""
    with pytest.raises(InputInvalid, match="create its parent folder first"):
        export(tmp_path / "source", tmp_path / "missing" / "out")


@pytest.mark.parametrize("make", ["file", "folder", "link"])
def test_a_target_that_exists_is_never_touched(tmp_path: Path, make: str) -> None:
    """Whatever stands there stays."""
    target = tmp_path / "out"
    if make == "file":
        target.write_text("mine")
    elif make == "folder":
        target.mkdir()
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputInvalid, match="out exists already"):
        export(tmp_path / "source", target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_a_damaged_source_leaves_nothing(tmp_path: Path) -> None:
    """A source that is cut short is an error, and no export remains that looks whole."""
    index = scatter(tmp_path / "source", small_model())
    path = tmp_path / "source" / "shards" / "data.bin"
    os.truncate(path, path.stat().st_size - 8)
    with (
        Files(tmp_path / "source") as files,
        pytest.raises(CheckpointDamaged, match="were expected"),
    ):
        huggingface.export(index, files, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


WRITER = """
import os, sys
from pathlib import Path
from tests.universal.exports.scattered import scatter, small_model
from wattmesh.reconfig.universal.exports import huggingface
from wattmesh.reconfig.universal.files.reader import Files
source, target, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
index = scatter(source, small_model())
count = 0
def progress(_):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), 9)
with Files(source) as files:
    huggingface.export(index, files, target, max_shard_bytes=300, progress=progress)
"""


def test_a_killed_export_is_not_there(tmp_path: Path) -> None:
    """Kill -9 after some writes: only a staging folder remains, and the next export succeeds."""
    for last in (1, 6):
        arguments = [str(tmp_path / "source"), str(tmp_path / "out"), str(last)]
        done = subprocess.run([sys.executable, "-c", WRITER, *arguments], check=False)
        assert done.returncode == -9
        assert not (tmp_path / "out").exists()
    export(tmp_path / "source", tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_only_pieces_are_in_memory(tmp_path: Path) -> None:
    """A tensor far larger than the buffer is exported in pieces of the buffer's size."""
    source = tmp_path / "source"
    index = scatter(source, {("w", "param"): torch.zeros(3, 2 << 20)})
    sizes: list[int] = []
    with Files(source) as files:
        huggingface.export(index, files, tmp_path / "out", progress=sizes.append)
    assert sum(sizes) > 24 << 20
    assert max(sizes) <= 8 << 20
