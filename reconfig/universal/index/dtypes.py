"""Dtypes by torch's names: sizes, safetensors codes and NumPy dtypes.

NumPy has no bfloat16 and no float8; their bits are handled as unsigned integers of the same size,
which is enough to copy them.
"""

from typing import Any

import numpy as np

from wattmesh.errors import InputInvalid

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""From torch's name to the code in a safetensors header."""

_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "bool": "uint8"}
_VIEWS: dict[str, np.dtype[Any]] = {
    name: np.dtype(_BITS.get(name, name)).newbyteorder("<") for name in CODES
}


def view_of(dtype: str) -> np.dtype[Any]:
    """Return the little-endian NumPy dtype that holds the bits of `dtype`.

    Raises:
        InputInvalid: the dtype is not supported.
    """
    if dtype not in CODES:
        raise InputInvalid(
            f"dtype {dtype!r} is not supported in a universal checkpoint; known are "
            f"{', '.join(CODES)}."
        )
    return _VIEWS[dtype]


def size_of(dtype: str) -> int:
    """Bytes of one element.

    Raises:
        InputInvalid: see `view_of`.
    """
    return view_of(dtype).itemsize
