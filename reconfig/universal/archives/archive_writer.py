"""Writes torch archives (as `torch.save` does) without torch, streaming the storages.

An archive is a zip of uncompressed records: `data.pkl`, the value with its tensors; `byteorder`;
`data/0` ..., one per storage, aligned to 64 bytes by padding in the zip's extra field, so that it
can be memory-mapped; `version`. The pickle comes first and refers to storages by number.

Invariant: at most one piece of one storage is in memory.
"""

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives import pickled
from wattmesh.reconfig.universal.archives.pickled import Global, PersistentId, Reduce
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import row_major

Pieces = Callable[[], Iterable[bytes | memoryview]]
"""Yields the bytes of one storage in order, in pieces of any size."""

ALIGNMENT = 64
"""Alignment of storages in bytes, as torch's."""

ZIP64_FROM = 0xFFFFFFFF
"""Sizes and offsets from this on need zip64 fields (PKWARE APPNOTE 6.3.10, section 4.4.1.4)."""

# Dtypes with a storage class of their own; torch writes all later ones as untyped bytes
# (torch/storage.py, _dtype_to_storage_type_map).
_STORAGE_CLASSES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}


class Out(Protocol):
    """A seekable file for writing."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of `data`."""
        ...

    def seek(self, offset: int, /) -> int:
        """Move to a byte of the file."""
        ...

    def tell(self) -> int:
        """Return the position."""
        ...


_TOP = "archive"
_UTF8_NAMES = 0x0800
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_CRC_AT = 14
_PADDING_ID = b"FB"


@dataclass(frozen=True, slots=True)
class _Storage:
    nbytes: int
    pieces: Pieces


@dataclass(frozen=True, slots=True)
class _Record:
    """One entry of the zip's directory."""

    name: bytes
    offset: int
    nbytes: int
    crc: int


class ArchiveWriter:
    """One torch archive: add tensors, then write a value that contains the returned markers."""

    def __init__(self, *, zip64_from: int = ZIP64_FROM) -> None:
        """Start an empty archive; tests lower `zip64_from` to write zip64 in small files."""
        self._storages: list[_Storage] = []
        self._zip64_from = zip64_from

    def storage(self, nbytes: int, pieces: Pieces) -> int:
        """Add the bytes of one storage; returns its number."""
        self._storages.append(_Storage(nbytes, pieces))
        return len(self._storages) - 1

    def tensor(self, dtype: str, shape: tuple[int, ...], pieces: Pieces) -> Reduce:
        """Add a contiguous tensor with its own storage; `pieces` yield it row-major."""
        strides = row_major(shape)
        count = 1
        for size in shape:
            count *= size
        nbytes = count * dtypes.size_of(dtype)
        return self.view(self.storage(nbytes, pieces), dtype, shape, strides)

    def view(
        self,
        storage: int,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        start: int = 0,
    ) -> Reduce:
        """Refer to a tensor inside a storage; `strides` and `start` are in elements."""
        nbytes = self._storages[storage].nbytes
        known = _STORAGE_CLASSES.get(dtype)
        size = dtypes.size_of(dtype)
        kind = Global("torch", known) if known else Global("torch.storage", "UntypedStorage")
        pid = PersistentId(
            ("storage", kind, str(storage), "cpu", nbytes // size if known else nbytes)
        )
        hooks = Reduce(Global("collections", "OrderedDict"))
        common = (pid, start, tuple(shape), tuple(strides), False, hooks)
        if known:
            return Reduce(Global("torch._utils", "_rebuild_tensor_v2"), common)
        rebuild = Global("torch._utils", "_rebuild_tensor_v3")
        return Reduce(rebuild, (*common, Global("torch", dtype)))

    def write(self, out: Out, value: Any) -> int:
        """Write the archive at the current position of `out`; returns its size in bytes.

        Raises:
            InputInvalid: `value` cannot be pickled, or a storage yielded more or fewer bytes than
                announced.
            OSError: from `out`.
        """
        zipped = _Zip(out, self._zip64_from)
        zipped.add("data.pkl", pickled.dumps(value))
        zipped.add("byteorder", b"little")
        for number, storage in enumerate(self._storages):
            zipped.stream(f"data/{number}", storage)
        zipped.add("version", b"3\n")
        return zipped.finish()


class _Zip:
    """A zip of uncompressed records; offsets count from the file's position at the start."""

    def __init__(self, out: Out, zip64_from: int) -> None:
        self._out = out
        self._start = out.tell()
        self._at = 0
        self._limit = zip64_from
        self._records: list[_Record] = []

    def add(self, name: str, data: bytes) -> None:
        self.stream(name, _Storage(len(data), lambda: [data]))

    def stream(self, name: str, storage: _Storage) -> None:
        """Write a record in pieces; its CRC is patched into the header afterwards."""
        path = f"{_TOP}/{name}".encode()
        header_at = self._at
        self._put(self._header(path, storage.nbytes))
        crc = given = 0
        for piece in storage.pieces():
            crc = zlib.crc32(piece, crc)
            given += memoryview(piece).nbytes
            self._out.write(piece)
        if given != storage.nbytes:
            raise InputInvalid(
                f"archive: record {name} got {given} bytes, {storage.nbytes} were announced."
            )
        self._at += given
        self._out.seek(self._start + header_at + _CRC_AT)
        self._out.write(struct.pack("<I", crc))
        self._out.seek(self._start + self._at)
        self._records.append(_Record(path, header_at, given, crc))

    def finish(self) -> int:
        """Write the directory; returns the bytes of the whole archive."""
        directory_at = self._at
        for record in self._records:
            self._put(self._line(record))
        size, count = self._at - directory_at, len(self._records)
        if directory_at >= self._limit or count >= 0xFFFF:
            end_at = self._at
            versions = (45, 45, 0, 0)
            counts = (count, count, size, directory_at)
            self._put(struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, *versions, *counts))
            self._put(struct.pack("<4sIQI", b"PK\x06\x07", 0, end_at, 1))
        few = min(count, 0xFFFF)
        place = self._short(directory_at)
        self._put(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, few, few, size, place, 0))
        return self._at

    def _put(self, data: bytes) -> None:
        self._out.write(data)
        self._at += len(data)

    def _short(self, number: int) -> int:
        """Value of a 32-bit field: all ones when the number is in a zip64 field."""
        return number if number < self._limit else 0xFFFFFFFF

    def _header(self, path: bytes, nbytes: int) -> bytes:
        """The local header, padded so that the data after it is aligned."""
        large = nbytes >= self._limit
        extra = struct.pack("<2H2Q", 1, 16, nbytes, nbytes) if large else b""
        fixed = self._at + _LOCAL.size + len(path) + len(extra) + 4
        padding = -fixed % ALIGNMENT
        extra += _PADDING_ID + struct.pack("<H", padding) + b"Z" * padding
        short = self._short(nbytes)
        version = 45 if large else 20
        fields = (version, _UTF8_NAMES, 0, 0, 0x21, 0, short, short, len(path), len(extra))
        return _LOCAL.pack(b"PK\x03\x04", *fields) + path + extra

    def _line(self, record: _Record) -> bytes:
        long = [n for n in (record.nbytes, record.nbytes, record.offset) if n >= self._limit]
        extra = struct.pack(f"<2H{len(long)}Q", 1, 8 * len(long), *long) if long else b""
        version = 45 if long else 20
        size = self._short(record.nbytes)
        fields = (version, version, _UTF8_NAMES, 0, 0, 0x21, record.crc, size, size)
        rest = (len(record.name), len(extra), 0, 0, 0, 0, self._short(record.offset))
        return _CENTRAL.pack(b"PK\x01\x02", *fields, *rest) + record.name + extra
