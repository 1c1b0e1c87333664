"""Reads the header of a safetensors file, or of one at the end of another file.

    8 bytes     length of the JSON, little-endian
    JSON        {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}
    data        the tensors; they fill it without gaps

Invariant: every tensor lies inside of the data, has as many bytes as its dtype and shape say, and
shares none with another; together they reach to the end of the file.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER
from wattmesh.reconfig.universal.archives.tensors import LARGEST, MAX_COUNT, MAX_DIMS, StoredTensor
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import row_major
from wattmesh.reconfig.universal.index.names import is_name

MAX_HEADER = 100_000_000
"""Longest header in bytes, as the safetensors library's."""

_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """Tensors by name, and texts that the writer added."""

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]


def read(files: Files, name: str, offset: int = 0) -> SafetensorsHeader:
    """Read the header that begins at byte `offset` and whose data reach to the file's end.

    Raises:
        InputInvalid: it is no safetensors header, damaged, or has an unsupported dtype.
        CheckpointDamaged: the file is missing or too short.
    """
    where = f"{files.folder.name}/{name}"
    size = files.opened(name)[1]
    length = int.from_bytes(_bytes(files, name, offset, 8), "little")
    if length > min(MAX_HEADER, size - offset - 8):
        raise InputInvalid(
            f"{where}: its safetensors header would have {length} bytes; the file is cut off, or "
            "no safetensors file."
        )
    text = _bytes(files, name, offset + 8, length)
    try:
        document = documents.mapping(documents.load(text), "it")
        _refuse_twice(text)
        metadata = documents.mapping(document.pop(_METADATA, {}), _METADATA)
        files.allowance.made(2 * CONTAINER * len(document), where)
        begin = offset + 8 + length
        tensors = {key: _tensor(key, told, begin) for key, told in document.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise InputInvalid(f"{where}: its safetensors header is damaged ({error!s:.200}).") from (
            error
        )
    _prove_filled(tensors, begin, size, where)
    texts = {key: value for key, value in metadata.items() if type(value) is str}
    return SafetensorsHeader(tensors, texts)


def _bytes(files: Files, name: str, offset: int, count: int) -> bytes:
    files.allowance.read(count, f"{files.folder.name}/{name}")
    data = bytearray(count)
    files.read_into(name, offset, memoryview(data))
    return bytes(data)


def _refuse_twice(text: bytes) -> None:
    """Refuse a name that occurs twice: JSON would silently keep the last one."""
    pairs: list[int] = []

    def count(items: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in items}) != len(items):
            raise ValueError("a name occurs twice")
        pairs.append(len(items))

    json.loads(text, object_pairs_hook=count)


def _tensor(key: str, told: Any, data: int) -> StoredTensor:
    if not is_name(key):
        raise ValueError("it holds a tensor whose name is no printable text")
    line = documents.mapping(told, repr(key[:80]))
    dtype = dtypes.NAMES.get(documents.text(line["dtype"], "a dtype"))
    if dtype is None:
        raise ValueError(f"{key!r:.80} is {line['dtype']!r:.40}, which is not supported")
    shape = line["shape"]
    if type(shape) is not list or len(shape) > MAX_DIMS:
        raise ValueError(f"the shape of {key!r:.80} is none")
    sizes = tuple(documents.whole(each, "a size", LARGEST) for each in shape)
    if math.prod(sizes) > MAX_COUNT:
        raise ValueError(f"the shape of {key!r:.80} has more elements than can be counted")
    begin, end = (documents.whole(each, "an offset", LARGEST) for each in line["data_offsets"])
    if end - begin != math.prod(sizes) * dtypes.size_of(dtype):
        raise ValueError(f"{key!r:.80} has {end - begin} bytes, which its shape does not make")
    return StoredTensor(data + begin, dtype, sizes, row_major(sizes))


def _prove_filled(tensors: Mapping[str, StoredTensor], begin: int, end: int, where: str) -> None:
    at = begin
    for name, tensor in sorted(tensors.items(), key=lambda each: (each[1].offset, each[1].nbytes)):
        if tensor.offset != at:
            raise InputInvalid(
                f"{where}: {name!r:.80} begins at byte {tensor.offset}, the tensor before it ends "
                f"at {at}; the file is damaged."
            )
        at += tensor.nbytes
    if at != end:
        raise InputInvalid(f"{where}: its tensors end at byte {at}, the file has {end}.")
