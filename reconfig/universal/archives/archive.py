"""Reads torch archives (what `torch.save` writes) as byte ranges of a file.

An archive is a zip of records that are stored, not compressed: `<top>/data.pkl` names the tensors,
`<top>/data/<key>` are their storages. Only the directory, a few headers and the pickle are read.

Invariant: a returned range fills the space between its own header and the next record, so a single
wrong byte of a header cannot shift it unnoticed.
"""

import struct
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER
from wattmesh.reconfig.universal.archives import unpickle
from wattmesh.reconfig.universal.files.reader import Files

# PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16, 4.5.3.
_LOCAL = struct.Struct("<4s5H3I2H")
_LINE = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENCRYPTED = 0x2041
_DESCRIBED = 0x0008
_DESCRIPTORS = (16, 24)  # bytes after a record that repeat its sizes; torch writes them
_MAX32 = 0xFFFFFFFF
_TAIL = 4096
_MAX_RECORDS = 1 << 22


@dataclass(frozen=True, slots=True)
class _Line:
    """A directory entry; `header` counts from the archive's start."""

    header: int
    nbytes: int
    crc: int


class Archive:
    """An archive with its directory read."""

    def __init__(self, files: Files, name: str, offset: int = 0, length: int | None = None) -> None:
        """Read the directory.

        Args:
            files: the folder that holds the file.
            name: of the file.
            offset: byte of the file where the archive begins.
            length: bytes of the archive; up to the file's end by default.

        Raises:
            InputInvalid: it is not a torch archive, or damaged.
            CheckpointDamaged: the file is missing or too short.
        """
        self._files = files
        self._name = name
        self.offset = offset
        self.length = files.opened(name)[1] - offset if length is None else length
        self.where = f"{files.folder.name}/{name}"
        if length is not None:
            self.where += f" at {offset}"
        if not 0 <= self.offset <= self.offset + self.length <= files.opened(name)[1]:
            raise self._bad(f"{self.length} bytes are claimed, the file ends before that")
        try:
            self._lines, self._directory = self._read_directory()
        except (struct.error, UnicodeDecodeError) as error:
            raise self._bad(f"its directory is damaged ({error})") from error
        self._headers = sorted(line.header for line in self._lines.values())
        if any(a == b for a, b in zip(self._headers, self._headers[1:], strict=False)):
            raise self._bad("two records share their bytes")
        tops = [name for name in self._lines if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(tops) != 1:
            raise self._bad(f"{len(tops)} records are called data.pkl; torch writes one")
        self._top = tops[0].removesuffix("data.pkl")
        self._storages: dict[str, tuple[int, int]] = {}

    def value(self) -> Any:
        """Decode the pickle: plain data, with tensors as ranges of the file.

        Raises:
            InputInvalid: it is damaged, or has a type that is not supported.
        """
        if f"{self._top}byteorder" in self._lines and self._record("byteorder") != b"little":
            raise self._bad("its tensors are not little-endian")
        allowance = self._files.allowance
        return unpickle.load(self._record("data.pkl"), self.where, self._storage, allowance)

    def _storage(self, key: str) -> tuple[int, int]:
        """Locate a storage in the file; a model's tensors often share one."""
        if key not in self._storages:
            self._storages[key] = self.member(f"data/{key}")
        return self._storages[key]

    def member(self, name: str) -> tuple[int, int]:
        """Return the offset in the file, and the size, of a record below the top folder.

        Raises:
            InputInvalid: it does not exist, is compressed or encrypted, or overlaps another.
        """
        full = f"{self._top}{name}"
        line = self._lines.get(full)
        if line is None:
            raise self._bad(f"it has no record {full!r:.80}")
        header = self._bytes(line.header, _LOCAL.size)
        signature, _, flags, method, *_, name_nbytes, extra_nbytes = _LOCAL.unpack(header)
        begin = line.header + _LOCAL.size + name_nbytes + extra_nbytes
        after = bisect_right(self._headers, line.header)
        limit = self._headers[after] if after < len(self._headers) else self._directory
        if signature != b"PK\3\4" or method != 0 or flags & _ENCRYPTED:
            raise self._bad(f"its record {full!r:.80} has no plain header")
        end = begin + line.nbytes
        if limit - end not in (_DESCRIPTORS if flags & _DESCRIBED else (0,)) or (
            limit > end and self._bytes(end, 4) != b"PK\7\x08"
        ):
            raise self._bad(f"its record {full!r:.80} does not end where the next one begins")
        if self._bytes(line.header + _LOCAL.size, name_nbytes) != full.encode():
            raise self._bad(f"its record {full!r:.80} is called otherwise in its own header")
        return self.offset + begin, line.nbytes

    def _record(self, name: str) -> bytes:
        """Read a small record and check its CRC, where torch computed one."""
        offset, nbytes = self.member(name)
        if nbytes > unpickle.MAX_NBYTES:
            raise self._bad(f"its record {name} has {nbytes} bytes")
        data = self._bytes(offset - self.offset, nbytes)
        expected = self._lines[f"{self._top}{name}"].crc
        if expected not in (0, zlib.crc32(data)):
            raise self._bad(f"the bytes of its record {name} are not those that were written")
        return data

    def _read_directory(self) -> tuple[dict[str, _Line], int]:
        """Read every record by name, and the offset of the directory."""
        count, nbytes, begin = self._end()
        if begin + nbytes > self.length or count > min(_MAX_RECORDS, nbytes // _LINE.size):
            raise self._bad(f"its directory of {count} records lies outside of it")
        data = self._bytes(begin, nbytes)
        self._files.allowance.made(CONTAINER * count, self.where)
        lines: dict[str, _Line] = {}
        at = 0
        for _ in range(count):
            name, line, at = self._line(data, at)
            if name in lines or not 0 <= line.header < begin:
                raise self._bad(f"its directory says {name!r:.80} twice, or puts it outside")
            lines[name] = line
        return lines, begin

    def _line(self, data: bytes, at: int) -> tuple[str, _Line, int]:
        """Decode a directory entry; return its name, itself, and the next one's offset."""
        signature, _, _, flags, method, _, _, crc, packed, nbytes, *rest = _LINE.unpack_from(
            data, at
        )
        name_nbytes, extra_nbytes, comment_nbytes, _, _, _, header = rest
        at += _LINE.size
        raw = data[at : at + name_nbytes]
        extra = data[at + name_nbytes : at + name_nbytes + extra_nbytes]
        at += name_nbytes + extra_nbytes + comment_nbytes
        if signature != b"PK\1\2" or at > len(data):
            raise self._bad("its directory is cut off")
        name = raw.decode()
        if method != 0 or flags & _ENCRYPTED:
            raise self._bad(
                f"its record {name!r:.80} is compressed or encrypted, which torch never does"
            )
        if _MAX32 in (packed, nbytes, header):
            nbytes, packed, header = _wide(extra, nbytes, packed, header)
        if packed != nbytes:
            raise self._bad(f"its record {name!r:.80} has two sizes")
        return name, _Line(header, nbytes, crc), at

    def _end(self) -> tuple[int, int, int]:
        """Number of records, and size and offset of the directory."""
        tail = self._bytes(max(0, self.length - _TAIL), min(_TAIL, self.length))
        if len(tail) < _END.size or tail[-_END.size :][:4] != b"PK\5\6":
            raise self._bad(
                "it does not end like an archive of torch; it is cut off, or was saved in torch's "
                "old format (then load it and save it again)"
            )
        _, disk, first, here, count, nbytes, begin, _ = _END.unpack(tail[-_END.size :])
        locator = tail[-_END.size - _LOCATOR.size : -_END.size]
        if locator[:4] == b"PK\6\7":
            _, _, at, _ = _LOCATOR.unpack(locator)
            if at + _END64.size > self.length:
                raise self._bad("the end of its directory lies outside of it")
            end = _END64.unpack(self._bytes(at, _END64.size))
            signature, disk, first, here, count, nbytes, begin = end[0], *end[4:]
            if signature != b"PK\6\6":
                raise self._bad("the end of its directory is damaged")
        if disk or first or here != count:
            raise self._bad("it is one part of several")
        return count, nbytes, begin

    def _bytes(self, at: int, nbytes: int) -> bytes:
        if not 0 <= at <= at + nbytes <= self.length:
            raise self._bad(f"bytes {at} to {at + nbytes} of it lie outside of it")
        self._files.allowance.read(nbytes, self.where)
        data = bytearray(nbytes)
        self._files.read_into(self._name, self.offset + at, memoryview(data))
        return bytes(data)

    def _bad(self, sentence: str) -> InputInvalid:
        return InputInvalid(f"{self.where} ({self.length} bytes): {sentence}.")


def _wide(extra: bytes, *values: int) -> list[int]:
    """Replace values that do not fit in 32 bits by those of the zip64 extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, nbytes = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            numbers = iter(struct.unpack_from(f"<{min(nbytes, 24) // 8}Q", extra, at + 4))
            return [next(numbers, value) if value == _MAX32 else value for value in values]
        at += 4 + nbytes
    return list(values)
