"""Writes a folder that `torch.distributed.checkpoint` loads: model, optimizer state and settings.

    __0_0.distcp ...   torch archives one after the other, one per chunk of a tensor or value
    .metadata          a pickle: key -> dtype, shape, chunks; (key, chunk) -> file, offset, length

Keys are those of a flattened optimizer state dict (`flatten_optimizer_state_dict=True`):
`model.<name>`, `optim.state.<name>.<slot>`, `optim.param_groups.<name>.<setting>`, with the
trainer's prefixes. DCP reads whole chunks, so tensors are cut into chunks of bounded size.

Invariant: the pickle names only classes of torch, and every archive passes `weights_only=True`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives import pickled
from wattmesh.reconfig.universal.archives.archive_writer import ArchiveWriter
from wattmesh.reconfig.universal.archives.pickled import Build, Global, New, Pairs, Reduce
from wattmesh.reconfig.universal.exports.stream import blocks, pieces
from wattmesh.reconfig.universal.exports.target import Sink, exported
from wattmesh.reconfig.universal.exports.values import NOTHING, OptimizerValues
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.files.staging import Progress, silent
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.index import PARAM, Index, TensorEntry
from wattmesh.reconfig.universal.index.names import HOOK, Names
from wattmesh.reconfig.universal.sources.source import BYTES

CHUNK_BYTES = 64 << 20
"""Most bytes of a chunk: a rank reads less than two chunks beyond the rows it needs."""

FILE_BYTES = 4 << 30
"""After a file has reached this size, the next one is started."""

_METADATA = "torch.distributed.checkpoint.metadata"
_VERSION = "1.0.0"


_SCALAR = Box((), ())


@dataclass(frozen=True, slots=True)
class _Item:
    """One archive under some keys: a chunk of entry `row`, or (`row` is None) a plain value.

    An entry that is not a tensor is an archive already and is copied byte for byte.
    """

    keys: tuple[str, ...]
    nbytes: int
    row: int | None = None
    box: Box = _SCALAR
    number: int = 0
    value: Any = None
    is_tensor: bool = True


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of an item's archive."""

    item: _Item
    file: str
    offset: int
    length: int


def export(
    index: Index,
    files: Files,
    target: Path,
    *,
    values: OptimizerValues = NOTHING,
    names: Names = HOOK,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Progress = silent,
) -> None:
    """Write a DCP folder.

    Args:
        index: of the checkpoint; every entry is written, a tied name as a second key.
        files: the files that it points to.
        target: a folder that does not exist yet.
        values: settings and scalars of the optimizer, written as DCP byte values.
        names: the names of the trainer that will load it.
        chunk_bytes: most bytes of a chunk (a single element at least).
        progress: called with the bytes written.

    Raises:
        InputInvalid: two values under one key, a setting that is not plain data, or a target that
            cannot be written.
        CheckpointDamaged: bytes are missing.
    """
    items = [*_values(values, names), *_chunks(index, names, chunk_bytes)]
    _refuse_doubles(items)
    reader = Reader(index, files)
    places: list[_Place] = []
    with exported(target, progress) as folder:
        for number, group in enumerate(_by_file(items)):
            name = f"__0_{number}.distcp"
            with folder.file(name) as out:
                places += [_write(out, name, item, reader) for item in group]
        folder.write(".metadata", pickled.dumps(_metadata(index, places, names)))


def _values(values: OptimizerValues, names: Names) -> Iterator[_Item]:
    for head, told in (("param_groups", values.settings), ("state", values.numbers)):
        for name, each in told.items():
            for last, value in each.items():
                yield _Item((f"{names.optim}{head}.{name}.{last}",), 0, value=value)
    for key, value in values.other.items():
        yield _Item((key,), 0, value=value)


def _chunks(index: Index, names: Names, chunk_bytes: int) -> Iterator[_Item]:
    aliases: dict[str, list[str]] = {}
    for alias, name in index.tied.items():
        aliases.setdefault(name, []).append(alias)
    for row, entry in enumerate(index.entries):
        if entry.state == BYTES:
            yield _Item((entry.name,), entry.nbytes, row, Box.whole(entry.shape), is_tensor=False)
            continue
        keys = [names.fqn(entry.name, entry.state)]
        if entry.state == PARAM:
            keys += [names.fqn(alias, PARAM) for alias in aliases.get(entry.name, ())]
        size = dtypes.size_of(entry.dtype)
        whole = Box.whole(entry.shape)
        # An empty tensor has one chunk too, as in DCP.
        for number, box in enumerate(list(blocks(whole, max(1, chunk_bytes // size))) or [whole]):
            yield _Item(tuple(keys), box.count * size, row, box, number)


def _refuse_doubles(items: Iterable[_Item]) -> None:
    """Refuse one key for two items, of which a reader would get only one."""
    owner: dict[str, int | None] = {}
    for item in items:
        for key in item.keys:
            if item.number == 0 and key in owner:
                raise InputInvalid(
                    f"export: two entries would both be called {key!r}; choose other prefixes."
                )
            owner[key] = item.row


def _by_file(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    group: list[_Item] = []
    size = 0
    for item in items:
        if group and size >= FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(item)
        size += item.nbytes
    yield group


def _write(out: Sink, name: str, item: _Item, reader: Reader) -> _Place:
    archive, value = ArchiveWriter(), item.value
    offset = out.tell()
    if item.row is None:
        return _Place(item, name, offset, archive.write(out, value))
    bytes_of = partial(pieces, reader, item.row, item.box)
    if not item.is_tensor:
        return _Place(item, name, offset, sum(out.write(piece) for piece in bytes_of()))
    dtype = reader.index.entries[item.row].dtype
    value = archive.tensor(dtype, item.box.shape, bytes_of)
    return _Place(item, name, offset, archive.write(out, value))


def _metadata(index: Index, places: Sequence[_Place], names: Names) -> Build:
    """Build the object that DCP unpickles from .metadata."""
    chunks: dict[str, list[Box]] = {}
    entries: dict[str, TensorEntry] = {}
    storage = []
    for place in places:
        item = place.item
        info = {"relative_path": place.file, "offset": place.offset, "length": place.length}
        stored = _made("torch.distributed.checkpoint.filesystem", "_StorageInfo", info)
        for key in item.keys:
            storage.append((_index(key, item), stored))
            chunks.setdefault(key, []).append(item.box)
            if item.row is not None and item.is_tensor:
                entries[key] = index.entries[item.row]
    described = {
        key: _tensor(entries[key], boxes) if key in entries else New(_of("BytesStorageMetadata"))
        for key, boxes in chunks.items()
    }
    state = {
        "state_dict_metadata": described,
        "planner_data": {key: _path(key, names) for key in chunks},
        "storage_data": Pairs(storage),
        "storage_meta": None,
        "version": _VERSION,
    }
    return _made(_METADATA, "Metadata", state)


def _path(key: str, names: Names) -> tuple[str, ...]:
    """Path of a key in the nested dict before flattening: one level per prefix part."""
    known = (p for p in (names.model, names.optim) if key.startswith(p))
    prefix = max(known, key=len, default="")
    return (*(part for part in prefix.split(".") if part), key.removeprefix(prefix))


def _index(key: str, item: _Item) -> Build:
    is_value = item.row is None or not item.is_tensor
    offset = None if is_value else _size(item.box.start)
    number = None if is_value else item.number
    return _made(_METADATA, "MetadataIndex", {"fqn": key, "offset": offset, "index": number})


def _tensor(entry: TensorEntry, boxes: Sequence[Box]) -> Build:
    """TensorStorageMetadata."""
    layout = Reduce(Global("torch.serialization", "_get_layout"), ("torch.strided",))
    contiguous = Reduce(_of("_MEM_FORMAT_ENCODING"), (0,))
    properties = (Global("torch", entry.dtype), layout, False, contiguous, False)
    state = {
        "properties": Build(New(_of("TensorProperties")), properties),
        "size": _size(entry.shape),
        "chunks": [
            _made(
                _METADATA,
                "ChunkStorageMetadata",
                {"offsets": _size(box.start), "sizes": _size(box.shape)},
            )
            for box in boxes
        ],
    }
    return _made(_METADATA, "TensorStorageMetadata", state)


def _of(name: str) -> Global:
    return Global(_METADATA, name)


def _made(module: str, name: str, state: dict[str, Any]) -> Build:
    """An object of a class with these attributes."""
    return Build(New(Global(module, name)), state)


def _size(shape: Shape) -> Reduce:
    return Reduce(Global("torch", "Size"), (tuple(shape),))
