"""The header of a data file: plain safetensors, padded so that the data is aligned.

Format: the length of the JSON in 8 bytes, little-endian; the JSON, padded with spaces; the data.
"""

import json
from collections.abc import Iterable, Mapping

from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape

ALIGNMENT = 4096


def header_line(dtype: str, shape: Shape, begin: int) -> dict[str, object]:
    """The header's value for one tensor whose data begins at `begin`."""
    end = begin + Box.whole(shape).count * dtypes.size_of(dtype)
    told = list(dtypes.header_shape(dtype, shape))
    return {"dtype": dtypes.CODES[dtype], "shape": told, "data_offsets": [begin, end]}


def data_header(
    tensors: Iterable[tuple[str, str, Shape]],
    *,
    metadata: Mapping[str, str] | None = None,
    alignment: int = ALIGNMENT,
) -> tuple[bytes, list[int]]:
    """Build the header for tensors that are stored one after the other.

    Args:
        tensors: key, dtype (torch's name) and shape of each, in the order of the data.
        metadata: entries besides the format.
        alignment: the header's length is a multiple of it; a multiple of 8.

    Returns:
        The header, and the offset of each tensor from the header's end.
    """
    document: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    begins, at = [], 0
    for key, dtype, shape in tensors:
        document[key] = header_line(dtype, shape, at)
        begins.append(at)
        at += Box.whole(shape).count * dtypes.size_of(dtype)
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % alignment)
    return len(text).to_bytes(8, "little") + text, begins
