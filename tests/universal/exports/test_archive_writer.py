"""Archives written without torch, against the readers of torch itself."""

import io
import struct
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives.archive_writer import ALIGNMENT, ArchiveWriter
from wattmesh.reconfig.universal.index import dtypes

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def raw(nbytes: int, seed: int) -> bytes:
    """Random bytes; only 0 and 1, so that they are valid for every dtype, also bool."""
    return np.random.default_rng(seed).integers(0, 2, nbytes, dtype=np.uint8).tobytes()


def cut(data: bytes, size: int) -> list[bytes]:
    """Split into pieces of `size` bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor, row by row."""
    flat = tensor.contiguous().view(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def load(data: bytes) -> Any:
    """Read with torch, which executes nothing."""
    return torch.load(io.BytesIO(data), weights_only=True)


def written(archive: ArchiveWriter, value: Any) -> bytes:
    """The bytes of an archive."""
    out = io.BytesIO()
    length = archive.write(out, value)
    assert length == len(out.getvalue())
    return out.getvalue()


@given(st.sampled_from(sorted(dtypes.CODES)), shapes, st.integers(1, 100), st.integers(0, 99))
@settings(max_examples=120, deadline=None)
def test_torch_reads_every_dtype_and_shape(
    dtype: str, shape: tuple[int, ...], piece: int, seed: int
) -> None:
    """Whatever the pieces it came in, a tensor has the dtype, shape and bits that were given."""
    data = raw(int(np.prod(shape, dtype=int)) * dtypes.size_of(dtype), seed)
    archive = ArchiveWriter()
    tensor = archive.tensor(dtype, shape, lambda: cut(data, piece))
    found = load(written(archive, {"t": tensor}))["t"]
    assert (found.dtype, tuple(found.shape)) == (getattr(torch, dtype), shape)
    assert bits(found) == data


@given(st.permutations(range(3)), st.integers(0, 3), st.booleans())
@settings(max_examples=30, deadline=None)
def test_views_of_one_storage(order: list[int], start: int, large: bool) -> None:
    """Strides and offsets mean what torch means by them; views of one storage share memory."""
    shape = (2, 3, 4)
    whole = torch.arange(24 + start, dtype=torch.int32)
    view = whole[start:].view(shape).permute(order)
    archive = ArchiveWriter(zip64_from=16 if large else 1 << 32)
    number = archive.storage(whole.numel() * 4, lambda: [whole.numpy().data])
    tree = [
        archive.view(number, "int32", tuple(view.shape), view.stride(), start),
        archive.view(number, "int32", (24 + start,), (1,)),
    ]
    found, flat = load(written(archive, tree))
    assert found.stride() == view.stride()
    assert torch.equal(found, view)
    flat[start] = 99
    assert int(found[0, 0, 0]) == 99


@pytest.mark.parametrize("zip64_from", [1, 100, 1 << 32])
def test_an_archive_can_be_mapped(tmp_path: Path, zip64_from: int) -> None:
    """`mmap=True` works, every storage is aligned, and zip64 fields say the same as short ones."""
    archive = ArchiveWriter(zip64_from=zip64_from)
    data = [raw(nbytes, nbytes) for nbytes in (4, 400, 4000)]
    tensors = [
        archive.tensor("float32", (len(each) // 4,), partial(cut, each, 64)) for each in data
    ]
    path = tmp_path / "archive.pt"
    with path.open("wb") as out:
        archive.write(out, {"tensors": tensors, "step": 3})
    found = torch.load(path, mmap=True, weights_only=True)
    assert [bits(each) for each in found["tensors"]] == data
    assert found["step"] == 3
    for number, each in enumerate(data):
        assert aligned_data(path, f"archive/data/{number}", len(each)) == each


def aligned_data(path: Path, name: str, nbytes: int) -> bytes:
    """Read a record's bytes by the zip's directory, and check their place."""
    with zipfile.ZipFile(path) as zipped, path.open("rb") as file:
        assert zipped.testzip() is None
        header_at = zipped.getinfo(name).header_offset
        file.seek(header_at + 26)
        name_size, extra_size = struct.unpack("<HH", file.read(4))
        start = header_at + 30 + name_size + extra_size
        assert start % ALIGNMENT == 0
        file.seek(start)
        return file.read(nbytes)


def test_more_records_than_a_short_directory_counts() -> None:
    """65,536 records and more need zip64, and get it."""
    archive = ArchiveWriter()
    tensors = [
        archive.tensor("uint8", (1,), partial(cut, bytes([n % 256]), 1)) for n in range(1 << 16)
    ]
    found = zipfile.ZipFile(io.BytesIO(written(archive, tensors)))
    assert len(found.namelist()) == (1 << 16) + 3
    assert found.read("archive/data/65535") == b"\xff"


def test_archives_in_a_row() -> None:
    """An archive may begin anywhere in a file, as the pieces of a DCP file do."""
    out = io.BytesIO()
    out.write(b"before")
    lengths = []
    for value in ("first", "second"):
        lengths.append(ArchiveWriter().write(out, value))
    data = out.getvalue()
    assert load(data[6 : 6 + lengths[0]]) == "first"
    assert load(data[6 + lengths[0] :]) == "second"


@pytest.mark.parametrize("given_bytes", [7, 9, 0])
def test_a_storage_of_another_size_is_refused(given_bytes: int) -> None:
    """Sabotaged twin: bytes that do not fill the announced tensor are an error with numbers."""
    archive = ArchiveWriter()
    tensor = archive.tensor("float32", (2,), lambda: [bytes(given_bytes)])
    with pytest.raises(InputInvalid, match=f"got {given_bytes} bytes, 8 were announced"):
        archive.write(io.BytesIO(), tensor)


def test_a_flipped_byte_is_found_by_the_checksum() -> None:
    """Sabotaged twin: the checksums are real; a changed byte of a storage is found by them."""
    archive = ArchiveWriter()
    data = raw(64, 1)
    spoilt = bytearray(written(archive, archive.tensor("uint8", (64,), lambda: [data])))
    spoilt[spoilt.index(data)] ^= 1
    assert zipfile.ZipFile(io.BytesIO(spoilt)).testzip() == "archive/data/0"


def test_a_dtype_torch_does_not_share_is_refused() -> None:
    """An unknown dtype is named."""
    with pytest.raises(InputInvalid, match="int4"):
        ArchiveWriter().tensor("int4", (2,), lambda: [])
