"""Dtypes by torch's names: sizes, safetensors codes and NumPy dtypes.

NumPy has no bfloat16 and no float8; their bits are handled as unsigned integers of the same size,
which is enough to copy them. safetensors has no complex128: a header calls it F64, with one more
dim of 2.
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
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "complex128": "F64",
    "complex64": "C64",
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

NAMES = {code: name for name, code in CODES.items() if name != "complex128"}
"""From the code in a safetensors header to torch's name."""

CARRIED = frozenset(CODES) - {"complex128"}
"""What a job may have in its state: its digest in memory counts elements of at most 8 bytes."""

_FLOAT8 = tuple(name for name in CODES if name.startswith("float8"))
_BITS = {"bfloat16": "uint16", "bool": "uint8", **dict.fromkeys(_FLOAT8, "uint8")}
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


def header_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a safetensors header gives for a tensor, beside `CODES[dtype]`."""
    return (*shape, 2) if dtype == "complex128" else shape


def size_of(dtype: str) -> int:
    """Bytes of one element.

    Raises:
        InputInvalid: see `view_of`.
    """
    return view_of(dtype).itemsize
