"""A small checkpoint as a foreign tool might have left it, and what it means.

Flat ranges, rows, columns with strides, replicas, scalars, an empty tensor, several element types,
bytes between them that mean nothing, a file in a folder, and one that holds no tensor.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape, row_major
from wattmesh.reconfig.universal.index.index import Segment, TensorEntry, build
from wattmesh.reconfig.universal.sources.source import Source, fingerprints

Key = tuple[str, str]
Truth = dict[Key, NDArray[Any]]

FILES = ("rank0.bin", "rank1.bin", "deep/er/rank2.bin")
NOTES = "notes.txt"


@dataclass
class Writer:
    """Files and their index in the making."""

    files: dict[str, bytearray] = field(
        default_factory=lambda: {name: bytearray(b"junk!!!!") for name in FILES}
    )
    entries: list[TensorEntry] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    truth: Truth = field(default_factory=dict)

    def entry(self, name: str, state: str, dtype: str, shape: Shape) -> NDArray[Any]:
        """A tensor of numbers that tell each element apart."""
        self.entries.append(TensorEntry(name=name, state=state, dtype=dtype, shape=shape))
        size = dtypes.size_of(dtype)
        rng = np.random.default_rng(len(self.entries))
        bits = rng.integers(0, 256, size * int(np.prod(shape, dtype=np.int64)), dtype=np.uint8)
        array = bits.view(dtypes.view_of(dtype)).reshape(shape)
        self.truth[name, state] = array
        return array

    def box(self, file: str, box: Box, order: tuple[int, ...] | None = None) -> None:
        """Store a box of the last entry; `order`: of its dims in the file, for strides."""
        entry = self.entries[-1]
        where = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
        part = self.truth[entry.key][where]
        strides: Shape = row_major(box.shape)
        if order is not None:
            part = np.ascontiguousarray(part.transpose(order))
            along = row_major(part.shape)
            strides = tuple(along[order.index(dim)] for dim in range(len(order)))
        self._store(file, box, part, strides=strides)

    def flat(self, file: str, begin: int, end: int) -> None:
        """Store a flat range of the last entry."""
        part = self.truth[self.entries[-1].key].ravel()[begin:end]
        self._store(file, Box((begin,), (end - begin,)), part, flat=True)

    def _store(
        self,
        file: str,
        box: Box,
        part: NDArray[Any],
        *,
        strides: Shape | None = None,
        flat: bool = False,
    ) -> None:
        key, data = self.entries[-1].key, self.files[file]
        segment = Segment(
            entry=key, file=file, offset=len(data), box=box, flat=flat, strides=strides
        )
        self.segments.append(segment)
        data += part.tobytes() + b"junk"


def write(folder: Path, rows: int = 6, *, columns: int = 5) -> tuple[Source, Truth]:
    """Write one below `folder`; its tensors have `rows` x `columns` elements or fewer."""
    out = Writer()
    for state in ("param", "exp_avg"):
        out.entry("zero", state, "float32", (rows, columns))
        cut = rows * columns // 2 - 1
        out.flat(FILES[0], 0, cut)
        out.flat(FILES[1], cut, rows * columns)
        out.entry("rows", state, "float32", (rows, columns))
        out.box(FILES[2], Box((2, 0), (rows - 2, columns)))
        out.box(FILES[0], Box((0, 0), (2, columns)))
        out.entry("columns", state, "float32", (rows, columns))
        out.box(FILES[0], Box((0, 0), (rows, 2)), order=(1, 0))
        out.box(FILES[1], Box((0, 2), (rows, columns - 2)))
        out.entry("copied", state, "float32", (3,))
        out.box(FILES[0], Box((0,), (3,)))
        out.box(FILES[1], Box((0,), (3,)))
    out.entry("half", "param", "bfloat16", (3, 2, 2))
    out.box(FILES[1], Box((0, 0, 0), (3, 2, 2)), order=(2, 0, 1))
    out.entry("flag", "extra", "bool", (3,))
    out.truth["flag", "extra"] &= 1
    out.box(FILES[1], Box((0,), (3,)))
    out.entry("nothing", "param", "float64", (0, 4))
    out.entry("count", "extra", "int64", ())
    out.box(FILES[2], Box((), ()))
    for name, data in out.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / NOTES).write_text("lr 0.1")
    index = build(out.entries, out.segments, tied={"zero.again": "zero"})
    source = Source(
        kind="foreign",
        described="three files of a test",
        folder=folder,
        index=index,
        values={"other": {"lr": 0.1}},
        position={"step": 7},
    )
    return source_of(source), out.truth


def source_of(source: Source) -> Source:
    """The source with fingerprints of its files as they are now."""
    with Files(source.folder) as files:
        seen = fingerprints(files, [*source.index.files, NOTES])
    return replace(source, files=seen)


def read_all(folder: Path, source_index: Any) -> Truth:
    """Every tensor of an index whose files lie below `folder`."""
    with Files(folder) as files:
        reader = Reader(source_index, files)
        return {entry.key: reader.read(row) for row, entry in enumerate(source_index.entries)}


def same(found: Truth, truth: Truth) -> bool:
    """Whether two sets of tensors are equal bit by bit."""
    return found.keys() == truth.keys() and all(
        found[key].tobytes() == truth[key].tobytes() and found[key].shape == truth[key].shape
        for key in truth
    )


def listing(folder: Path) -> set[str]:
    """Every path below a folder."""
    return {str(each.relative_to(folder)) for each in folder.rglob("*")}
