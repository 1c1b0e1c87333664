"""Tensors of a torch archive as byte ranges in a file.

Invariant: every element of a StoredTensor lies inside its storage as given by the archive's
directory; numbers from a pickle are used only after that check.
"""

import math
from dataclasses import dataclass
from typing import Any

from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import row_major

MAX_DIMS = 64
LARGEST = 1 << 48
"""Upper bound of any offset, size or stride, in elements."""

MAX_COUNT = 1 << 58
"""Most elements of a tensor; their bytes still fit in 64 bits."""

UNTYPED = ""
"""Element type of an untyped storage: each tensor has its own."""

# torch/storage.py, _dtype_to_storage_type_map.
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": UNTYPED,
}

_ALIASES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64",
            "int": "int32", "short": "int16", "cfloat": "complex64",
            "cdouble": "complex128"}  # fmt: skip


def storage_type(module: str, name: str) -> str:
    """Return the element type of a storage class of torch.

    Raises:
        LookupError: it is not supported.
    """
    if module not in ("torch", "torch.storage"):
        raise LookupError(name)
    return _STORAGES[name]


def element_type(module: str, name: str) -> str:
    """Return the canonical name of the dtype `torch.<name>`.

    Raises:
        LookupError: it is not supported.
    """
    dtype = _ALIASES.get(name, name)
    if module != "torch" or dtype not in dtypes.CODES:
        raise LookupError(name)
    return dtype


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A strided tensor in a file.

    Attributes:
        offset: byte of the first element.
        dtype: torch's name.
        shape, strides: in elements; strides >= 0.
    """

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.count * dtypes.size_of(self.dtype)

    @property
    def contiguous(self) -> bool:
        """Tell whether its elements are in row-major order without gaps."""
        expected = row_major(self.shape)
        return self.count == 0 or all(
            size == 1 or step == wanted
            for size, step, wanted in zip(self.shape, self.strides, expected, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Storage:
    """A byte range of the file that tensors are views of; `dtype` may be UNTYPED."""

    dtype: str
    offset: int
    nbytes: int

    def tensor(self, dtype: str, offset: Any, shape: Any, strides: Any) -> StoredTensor:
        """Return the tensor at element `offset`.

        Raises:
            ValueError: it exceeds the storage, or its description is malformed.
        """
        if type(shape) is not tuple or type(strides) is not tuple:
            raise ValueError("shape and strides are no tuples")
        if not len(shape) == len(strides) <= MAX_DIMS:
            raise ValueError(f"{len(shape)} dims with {len(strides)} strides")
        numbers = (offset, *shape, *strides)
        if not all(type(each) is int and 0 <= each < LARGEST for each in numbers):
            raise ValueError("sizes that are no numbers, or out of range")
        if math.prod(shape) > MAX_COUNT:
            raise ValueError(f"shape {shape!r:.80} has more elements than can be counted")
        size = dtypes.size_of(dtype)
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if math.prod(shape) and (offset + last + 1) * size > self.nbytes:
            raise ValueError(
                f"shape {shape} reaches to byte {(offset + last + 1) * size} of a storage of "
                f"{self.nbytes}"
            )
        return StoredTensor(self.offset + offset * size, dtype, shape, strides)
