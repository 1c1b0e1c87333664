"""Planner and reader: any box of any cut reads as NumPy slices it, and little else is read."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.universal.oracle import SHAPES, Stored, boxes_in, cuts, stored
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.files import reader as reading
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.index import Segment, TensorEntry, build
from wattmesh.reconfig.universal.index.planner import Planner

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@SAME_FOLDER
@given(st.data(), SHAPES, st.booleans(), st.booleans())
def test_any_box_reads_like_a_slice(
    tmp_path: Path, data: st.DataObject, shape: Shape, flat: bool, transposed: bool
) -> None:
    """From boxes or flat ranges, into contiguous or strided memory; pieces are disjoint."""
    edges = data.draw(st.lists(st.integers(0, 200), max_size=5))
    source = stored(shape, data.draw(cuts(shape)), tuple(edges) if flat else None)
    box = data.draw(boxes_in(shape))
    expected = source.array[_slices(box)]
    out = np.full(box.shape[::-1] if transposed else box.shape, -1, np.float32)
    out = out.T if transposed else out
    with _opened(tmp_path, source) as files:
        Reader(source.index, files).read_into(0, box, out)
    assert np.array_equal(out, expected)
    pieces = Planner(source.index).pieces(0, box)
    assert sum(piece.box.count for piece in pieces) == box.count
    assert all(a.box.intersect(b.box) is None for n, a in enumerate(pieces) for b in pieces[:n])


@SAME_FOLDER
@given(st.data())
def test_long_runs_are_read_exactly(tmp_path: Path, data: st.DataObject) -> None:
    """Columns of at least MIN_RUN bytes cost the bytes they have, not those of their rows."""
    shape = (data.draw(st.integers(2, 9)), 3 * reading.MIN_RUN // 4)
    source = stored(shape, (Box.whole(shape),))
    first = data.draw(st.integers(0, shape[1] // 3))
    box = Box(
        (1, first), (shape[0] - 1, data.draw(st.integers(reading.MIN_RUN // 4, shape[1] // 2)))
    )
    with _opened(tmp_path, source) as files:
        found = Reader(source.index, files).read(0, box)
        assert files.bytes_read == box.count * 4
    assert np.array_equal(found, source.array[_slices(box)])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_strided_bytes_larger_than_the_buffer(
    tmp_path: Path, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that was saved from a transposed view reads in pieces of bounded memory."""
    monkeypatch.setattr(reading, "BUFFER", 512)
    array = np.arange(7 * 11 * 13, dtype=np.float32).reshape(7, 11, 13)
    laid_out = np.ascontiguousarray(array.transpose(order))
    strides = np.empty(3, dtype=int)
    strides[list(order)] = [each // 4 for each in laid_out.strides]
    entry = TensorEntry(name="w", state="param", dtype="float32", shape=array.shape)
    segment = Segment(
        entry=entry.key, file="f", offset=0, box=Box.whole(array.shape),
        strides=tuple(int(each) for each in strides),
    )  # fmt: skip
    source = Stored(array, build([entry], [segment]), laid_out.tobytes())
    for box in (Box.whole(array.shape), Box((1, 2, 3), (5, 8, 9))):
        with _opened(tmp_path, source) as files:
            assert np.array_equal(Reader(source.index, files).read(0, box), array[_slices(box)])


def test_an_expanded_tensor_reads(tmp_path: Path) -> None:
    """Stride 0: one stored row stands for all."""
    array = np.broadcast_to(np.arange(5, dtype=np.float32), (4, 5))
    entry = TensorEntry(name="w", state="param", dtype="float32", shape=(4, 5))
    segment = Segment(entry=entry.key, file="f", offset=0, box=Box.whole((4, 5)), strides=(0, 1))
    source = Stored(array, build([entry], [segment]), array[0].tobytes())
    with _opened(tmp_path, source) as files:
        assert np.array_equal(Reader(source.index, files).read(0), array)


def test_a_wrong_destination_is_refused(tmp_path: Path) -> None:
    """Another dtype or shape is an error, never a cast; a box outside is named."""
    source = stored((4, 6), (Box.whole((4, 6)),))
    with _opened(tmp_path, source) as files:
        reader = Reader(source.index, files)
        with pytest.raises(InputInvalid, match=r"w \(param\) is float32 \(2, 6\) there"):
            reader.read_into(0, Box((0, 0), (2, 6)), np.empty((2, 6), np.float16))
        with pytest.raises(InputInvalid, match="destination is float32 \\(6, 2\\)"):
            reader.read_into(0, Box((0, 0), (2, 6)), np.empty((6, 2), np.float32))
        with pytest.raises(InputInvalid, match=r"\[3:5, 0:6\] lies outside"):
            reader.read_into(0, Box((3, 0), (2, 6)), np.empty((2, 6), np.float32))


def test_missing_bytes_are_named(tmp_path: Path) -> None:
    """A file that is short, gone, a link or outside the folder; a hole in the index."""
    source = stored((4, 6), (Box.whole((4, 6)),))
    whole = source.index
    (tmp_path / "f").write_bytes(source.data[:-1])
    with Files(tmp_path) as files, pytest.raises(CheckpointDamaged, match="has 98 bytes; bytes 3"):
        Reader(whole, files).read(0)
    (tmp_path / "f").unlink()
    with Files(tmp_path) as files, pytest.raises(CheckpointDamaged, match="No such file"):
        Reader(whole, files).read(0)
    (tmp_path / "real").write_bytes(source.data)
    (tmp_path / "f").symlink_to("real")
    with (
        Files(tmp_path) as files,
        pytest.raises(CheckpointDamaged, match="/f is no plain file but a symb"),
    ):
        Reader(whole, files).read(0)
    holed = stored((4, 6), (Box((0, 0), (3, 6)),)).index
    with pytest.raises(CheckpointDamaged, match="does not cover"):
        Planner(holed).pieces(0, Box((2, 0), (2, 6)))


@pytest.mark.parametrize("name", ["/etc/passwd", "../f", "a/../f", "./f", "a//f", "", "."])
def test_only_plain_relative_paths_are_opened(tmp_path: Path, name: str) -> None:
    """Whatever could lead out of the folder is refused by name."""
    with Files(tmp_path) as files, pytest.raises(InputInvalid, match="plain relative paths"):
        files.opened(name)


def test_a_bounded_number_of_files_is_open(tmp_path: Path) -> None:
    """However many there are, and all of them read right, the first one again at the end."""
    names = [f"{number}" for number in range(reading.MAX_OPEN + 5)]
    for name in names:
        (tmp_path / name).write_text(f"{name:>4}")
    before = len(list(Path("/proc/self/fd").iterdir()))
    out = bytearray(4)
    with Files(tmp_path) as files:
        for name in [*names, names[0]]:
            files.read_into(name, 0, memoryview(out))
            assert out.decode() == f"{name:>4}"
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + reading.MAX_OPEN
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """It is an error, not a crash and not zeros."""
    source = stored((4, 6), (Box.whole((4, 6)),))
    with _opened(tmp_path, source) as files:
        files.opened("f")
        (tmp_path / "f").write_bytes(b"12345")
        with pytest.raises(CheckpointDamaged, match="shrank while it was read"):
            Reader(source.index, files).read(0)


def _opened(folder: Path, source: Stored) -> Files:
    (folder / "f").write_bytes(source.data)
    return Files(folder)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
