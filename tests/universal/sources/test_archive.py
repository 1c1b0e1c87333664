"""Torch's archives are read as byte ranges; damaged and hostile ones are refused by a sentence."""

import contextlib
import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.archives.archive import Archive
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index import dtypes

_TENSORS = {
    "float32": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "bfloat16": torch.arange(6, dtype=torch.bfloat16),
    "float8": torch.arange(5, dtype=torch.float32).to(torch.float8_e4m3fn),
    "uint16": torch.tensor([1, 2, 65535], dtype=torch.uint16),
    "bool": torch.tensor([True, False]),
    "transposed": torch.arange(12, dtype=torch.float64).reshape(3, 4).t(),
    "slice": torch.arange(20)[4:9],
    "expanded": torch.tensor([7.0]).expand(3),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    "buffer": torch.nn.Buffer(torch.ones(3)),
}


def _saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _value(folder: Path, data: bytes, offset: int = 0, length: int | None = None) -> Any:
    (folder / "a.pt").write_bytes(data)
    with Files(folder) as files:
        return Archive(files, "a.pt", offset, length).value()


def _elements(data: bytes, tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """The tensor's elements as bits, read where it says they are."""
    view = dtypes.view_of(tensor.dtype)
    span = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True)) + 1
    flat = np.frombuffer(data, view, span if tensor.count else 0, tensor.offset)
    steps = [each * view.itemsize for each in tensor.strides]
    return np.lib.stride_tricks.as_strided(flat, tensor.shape, steps)


@pytest.mark.parametrize("name", list(_TENSORS))
def test_tensors_are_where_it_says(name: str, tmp_path: Path) -> None:
    """The range and strides of every kind of tensor hold the bits that torch saved."""
    data = _saved({"before": torch.zeros(9), "it": _TENSORS[name]})
    read = _value(tmp_path, data)["it"]
    expected = _TENSORS[name].detach().contiguous()
    assert read.dtype == str(expected.dtype).removeprefix("torch.")
    assert read.shape == tuple(expected.shape)
    found = np.ascontiguousarray(_elements(data, read)).view(np.uint8).ravel()
    assert found.tolist() == expected.reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("way", ["conj", "neg", "parameter"])
def test_a_tensor_that_is_not_what_its_bytes_are_is_refused(way: str, tmp_path: Path) -> None:
    """Torch keeps a conjugate as a bit beside the same bytes; with the bit resolved it is read."""
    lazy = torch.randn(3, dtype=torch.complex64).conj()
    tensor = {"conj": lazy, "neg": lazy.imag, "parameter": torch.nn.Parameter(lazy)}[way]
    with pytest.raises(InputInvalid, match=r"its bytes are not its elements; save it with resolve"):
        _value(tmp_path, _saved({"it": tensor}))
    resolved = tensor.detach().resolve_conj().resolve_neg()
    assert _value(tmp_path, _saved({"it": resolved}))["it"].shape == (3,)


def test_embedded_archive(tmp_path: Path) -> None:
    """An archive inside of another file reads the same, with ranges of that file."""
    data = _saved(torch.arange(5.0))
    inside = b"x" * 1001 + data + b"y" * 30
    read = _value(tmp_path, inside, 1001, len(data))
    assert _elements(inside, read).tolist() == [0, 1, 2, 3, 4]
    for offset, length in ((1000, len(data)), (1001, len(data) - 1), (1001, len(data) + 1)):
        with pytest.raises(InputInvalid):
            _value(tmp_path, inside, offset, length)
    with pytest.raises(InputInvalid, match="ends before"):
        _value(tmp_path, inside, 1001, len(inside))


def test_plain_values_beside_tensors(tmp_path: Path) -> None:
    """What is no tensor is plain data."""
    value = {"lr": 0.1, "betas": (0.9, 0.99), "names": ["a"], "size": torch.Size([2, 3])}
    assert _value(tmp_path, _saved(value)) == {**value, "size": (2, 3)}


def test_checks_that_torch_did_not_compute(tmp_path: Path) -> None:
    """An archive that torch wrote without checksums is read."""
    torch.serialization.set_crc32_options(False)
    try:
        data = _saved({"a": 1})
    finally:
        torch.serialization.set_crc32_options(True)
    assert _value(tmp_path, data) == {"a": 1}


def _zip(records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as out:
        for name, data in records.items():
            out.writestr(name, data)
    return file.getvalue()


def _with_directory(data: bytes, at: int, form: str, value: int) -> bytes:
    """Change a field of the first line of a zip's directory."""
    begin = data.index(b"PK\1\2") + at
    return data[:begin] + struct.pack(form, value) + data[begin + struct.calcsize(form) :]


_PICKLE = b"\x80\x02N."
_GOOD = _zip({"a/data.pkl": _PICKLE, "a/version": b"3"})
_ONE_STORAGE = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n%s\n"
    b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00%s\x85K\x01\x85\x89Nt R."
).replace(b" ", b"")


_EXPANDED = _ONE_STORAGE.replace(b"\x85K\x01\x85", b"\x86K\x00K\x00\x86")


def _one(kind: bytes, size: bytes) -> bytes:
    return _zip({"a/data.pkl": _ONE_STORAGE % (kind, size), "a/data/0": b"12345678"})


_BAD = {
    "nothing": b"",
    "text": b"not an archive, but longer than the end of one would be",
    "an old torch file": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
    "no pickle": _zip({"a/version": b"3"}),
    "two pickles": _zip({"a/data.pkl": _PICKLE, "b/data.pkl": _PICKLE}),
    "compressed": _zip({"a/data.pkl": _PICKLE * 100}, zipfile.ZIP_DEFLATED),
    "big-endian": _zip({"a/data.pkl": _PICKLE, "a/byteorder": b"big"}),
    "a comment": _GOOD[:-2] + b"\x02\x00hi",
    "encrypted": _with_directory(_GOOD, 8, "<H", 1),
    "more bytes than there are": _with_directory(
        _with_directory(_GOOD, 20, "<I", 1 << 20), 24, "<I", 1 << 20
    ),
    "two sizes": _with_directory(_GOOD, 20, "<I", 3),
    "a header elsewhere": _with_directory(_GOOD, 42, "<I", 3),
    "a header far away": _with_directory(_GOOD, 42, "<I", 1 << 30),
    "a header of another": _with_directory(_GOOD, 42, "<I", _GOOD.rindex(b"PK\3\4")),
    "too many records": _GOOD[:-14] + b"\xff\xff\xff\xff" + _GOOD[-10:],
    "a cut directory": _GOOD[:-10] + struct.pack("<I", 50) + _GOOD[-6:],
    "two disks": _GOOD[:-18] + b"\x01\x00" + _GOOD[-16:],
    "another checksum": _with_directory(_GOOD, 16, "<I", 99),
    "a storage of strings": _one(b"StringStorage", b"K\x02"),
    "a storage too small": _one(b"FloatStorage", b"K\x03"),
    "a negative size": _one(b"FloatStorage", b"J\xff\xff\xff\xff"),
    "more elements than can be counted": _zip({
        "a/data.pkl": _EXPANDED % (b"FloatStorage", b"\x8a\x06\0\0\0\0\0\x01" * 2),
        "a/data/0": b"12345678",
    }),
    "a missing storage": _zip({"a/data.pkl": _ONE_STORAGE % (b"FloatStorage", b"K\x02")}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(_BAD))
def test_bad_archives_are_refused(name: str, tmp_path: Path) -> None:
    """Everything that torch does not write is refused by a sentence that names the file."""
    with pytest.raises(InputInvalid, match=r"a\.pt"):
        _value(tmp_path, _BAD[name])


def test_good_twins_are_read(tmp_path: Path) -> None:
    """Sabotaged twin turned round: what the bad archives were made from is good."""
    assert _value(tmp_path, _GOOD) is None
    tensor = _value(tmp_path, _one(b"FloatStorage", b"K\x02"))
    assert (tensor.dtype, tensor.shape) == ("float32", (2,))


def test_zip64_sizes(tmp_path: Path) -> None:
    """Sizes and offsets may stand in zip64 fields; those are held against the file too."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out, out.open("a/data.pkl", "w", force_zip64=True) as record:
        record.write(_PICKLE)
    data = file.getvalue()
    assert _value(tmp_path, data) is None
    line = data.index(b"PK\1\2")
    for size, expected in ((len(_PICKLE), None), (1 << 40, InputInvalid)):
        extra = struct.pack("<2H2Q", 1, 16, size, size)
        wide = bytearray(data[line : line + 46])
        struct.pack_into("<2I", wide, 20, 0xFFFFFFFF, 0xFFFFFFFF)
        struct.pack_into("<H", wide, 30, len(extra))
        directory = bytes(wide) + b"a/data.pkl" + extra
        end = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 1, 1, len(directory), line, 0)
        if expected is None:
            assert _value(tmp_path, data[:line] + directory + end) is None
        else:
            with pytest.raises(expected):
                _value(tmp_path, data[:line] + directory + end)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with Files(tmp_path) as files, pytest.raises(CheckpointDamaged, match=r"b\.pt"):
        Archive(files, "b.pt")


_WHOLE = _saved({"a": torch.arange(40.0), "b": [torch.ones(3).t(), {"lr": 0.5}]})


@given(at=st.integers(0, len(_WHOLE) - 1), bits=st.integers(1, 255))
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bytes(at: int, bits: int, tmp_path: Path) -> None:
    """After any one byte changed, the archive reads the same or is refused."""
    data = _WHOLE[:at] + bytes([_WHOLE[at] ^ bits]) + _WHOLE[at + 1 :]
    expected = _value(tmp_path, _WHOLE)
    with contextlib.suppress(InputInvalid):
        assert _value(tmp_path, data) == expected


@given(at=st.integers(0, len(_WHOLE) - 1))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_truncated(at: int, tmp_path: Path) -> None:
    """An archive that is cut off anywhere is refused."""
    with pytest.raises(InputInvalid):
        _value(tmp_path, _WHOLE[:at])
