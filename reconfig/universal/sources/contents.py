"""What a checkpoint holds, by FQN: the chunks of its tensors, and its plain values.

Invariant: boxes of a tensor have its dims; whoever makes contents checked all numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.index.box import Box, Shape


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """The location of a torch archive.

    Attributes:
        transforms: descriptors of what was done to its bytes ("stream.zstd/1"), last first.
    """

    file: str
    offset: int
    length: int
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ElementPlace:
    """The location of a chunk's elements, already found."""

    file: str
    tensor: StoredTensor


Place = ArchivePlace | ElementPlace


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's chunks, each with its place."""

    dtype: str
    shape: Shape
    chunks: tuple[tuple[Box, Place], ...]

    @classmethod
    def whole(cls, file: str, stored: StoredTensor) -> "Tensor":
        """A tensor that is one chunk."""
        chunk = (Box.whole(stored.shape), ElementPlace(file, stored))
        return cls(stored.dtype, stored.shape, (chunk,))


@dataclass(frozen=True, slots=True)
class Decoded:
    """A value that was decoded from a pickle, in the file `where`."""

    value: Any
    where: str


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything in a checkpoint, by FQN.

    Attributes:
        tensors: by FQN.
        values: by FQN: archives, or values that were decoded already.
        left_out: names of what was not read.
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, ArchivePlace | Decoded] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
