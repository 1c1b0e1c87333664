"""Decodes the `.metadata` of a DCP folder: the chunks and their locations.

It is a pickle of `Metadata` (torch/distributed/checkpoint/metadata.py), decoded as plain data.

Invariant: the result holds only numbers and text of the right types, each chunk with its place.
"""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER, Allowance
from wattmesh.reconfig.universal.archives import unpickle
from wattmesh.reconfig.universal.archives.rebuild import GlobalName, Record, brief
from wattmesh.reconfig.universal.archives.tensors import LARGEST, MAX_COUNT, MAX_DIMS, element_type
from wattmesh.reconfig.universal.files.regular_files import RegularFiles
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.names import MAX_NAME, is_name
from wattmesh.reconfig.universal.sources.contents import ArchivePlace, Contents, Tensor

METADATA = ".metadata"


def read(folder: Path, allowance: Allowance) -> Contents:
    """Decode a folder's `.metadata`; the allowance is charged for it.

    Raises:
        CheckpointDamaged: it is missing.
        InputInvalid: it is damaged or not supported.
    """
    where = f"{folder.name}/{METADATA}"
    try:
        with RegularFiles(folder) as files:
            data = files.read(METADATA, unpickle.MAX_NBYTES, allowance)
    except OSError as error:
        raise CheckpointDamaged(f"{where} cannot be read ({error.strerror}).") from error
    parser = _Parser(where, allowance)
    told = unpickle.load(data, where, allowance=allowance)
    return parser.contents(parser.fields(told, "Metadata"))


def refuse_shared_bytes(contents: Contents, where: str) -> None:
    """Refuse places that overlap: every byte belongs to one archive.

    Raises:
        InputInvalid: two archives share bytes; `where` names the folder.
    """
    chunks = (place for each in contents.tensors.values() for _, place in each.chunks)
    every = {each for each in (*chunks, *contents.values.values()) if type(each) is ArchivePlace}
    places = sorted(every, key=lambda each: (each.file, each.offset))
    for one, other in itertools.pairwise(places):
        if one.file == other.file and one.offset + one.length > other.offset:
            raise InputInvalid(
                f"{where}/{METADATA}: bytes {other.offset} and on of {other.file!r:.80} are in two "
                "archives at once."
            )


class _Parser:
    """Decodes the records; `where` names the file in errors."""

    def __init__(self, where: str, allowance: Allowance) -> None:
        self.where = where
        self.allowance = allowance

    def contents(self, top: Mapping[str, Any]) -> Contents:
        places = self.places(top.get("storage_data"))
        described = top.get("state_dict_metadata")
        if type(described) is not dict:
            raise self.bad("it does not say what is stored")
        tensors, values = {}, {}
        for fqn, record in described.items():
            if not is_name(fqn) or type(record) is not Record:
                raise self.bad(
                    f"{brief(fqn)} is no name of a tensor (printable text of at most {MAX_NAME} "
                    "characters)"
                )
            if record.kind.name == "BytesStorageMetadata":
                values[fqn] = self.place(places, fqn, None)
            else:
                tensors[fqn] = self.tensor(places, fqn, record)
        return Contents(tensors, values)

    def places(self, stored: Any) -> dict[tuple[str, Shape | None], ArchivePlace]:
        """Places by (FQN, start of the chunk)."""
        if type(stored) is not dict:
            raise self.bad("it does not say where things are stored; another storage wrote it")
        places: dict[tuple[str, Shape | None], ArchivePlace] = {}
        for index, info in stored.items():
            key = self.fields(index, "MetadataIndex")
            offset = key.get("offset")
            start = None if offset is None else self.size(offset)
            name = key.get("fqn")
            self.allowance.made(2 * CONTAINER, self.where)
            if type(name) is not str or (name, start) in places:
                raise self.bad(f"it places {brief(name)} twice")
            places[name, start] = self.info(self.fields(info, "_StorageInfo"), name)
        return places

    def info(self, told: Mapping[str, Any], name: str) -> ArchivePlace:
        file: Any = told.get("relative_path")
        offset: Any = told.get("offset")
        length: Any = told.get("length")
        told_transforms = told.get("transform_descriptors") or []
        if type(told_transforms) is not list or not all(map(is_name, told_transforms)):
            raise self.bad(f"the transforms of {brief(name)} are malformed")
        if type(file) is str and _whole(offset) and _whole(length):
            return ArchivePlace(file, offset, length, tuple(told_transforms))
        raise self.bad(f"the place of {brief(name)} is malformed")

    def place(
        self, places: Mapping[tuple[str, Shape | None], ArchivePlace], fqn: str, start: Shape | None
    ) -> ArchivePlace:
        found = places.get((fqn, start))
        if found is None:
            raise self.bad(f"it does not say where {fqn!r:.80} (chunk at {start}) is stored")
        return found

    def tensor(
        self, places: Mapping[tuple[str, Shape | None], ArchivePlace], fqn: str, record: Record
    ) -> Tensor:
        told = self.fields(record, "TensorStorageMetadata")
        shape, chunks = self.size(told.get("size")), told.get("chunks")
        if type(chunks) is not list:
            raise self.bad(f"the chunks of {fqn!r:.80} are no list")
        self.allowance.made(2 * CONTAINER * len(chunks), self.where)
        boxes = [self.box(each, fqn, len(shape)) for each in chunks]
        if len({box.start for box in boxes}) != len(boxes):
            raise self.bad(f"two chunks of {fqn!r:.80} begin at the same element")
        placed = tuple((box, self.place(places, fqn, box.start)) for box in boxes)
        return Tensor(self.dtype(told.get("properties"), fqn), shape, placed)

    def box(self, chunk: Any, fqn: str, dims: int) -> Box:
        told = self.fields(chunk, "ChunkStorageMetadata")
        box = Box(self.size(told.get("offsets")), self.size(told.get("sizes")))
        if not len(box.start) == len(box.shape) == dims:
            raise self.bad(f"a chunk of {fqn!r:.80} has not its tensor's {dims} dims")
        return box

    def dtype(self, properties: Any, fqn: str) -> str:
        """The dtype in TensorProperties, whose state is a tuple, or a dict in old files."""
        state = properties.state if type(properties) is Record else None
        dtype = state[0] if type(state) is tuple and state else None
        if type(state) is dict:
            dtype = state.get("dtype")
        try:
            if type(dtype) is GlobalName:
                return element_type(dtype.module, dtype.name)
        except LookupError as error:
            raise self.bad(f"{fqn!r:.80} is {dtype}, which is not supported") from error
        raise self.bad(f"{fqn!r:.80} has no dtype")

    def size(self, value: Any) -> Shape:
        good = type(value) is tuple and len(value) <= MAX_DIMS
        if not good or not all(_whole(n) for n in value) or math.prod(value) > MAX_COUNT:
            raise self.bad(f"{brief(value)} is no size")
        return tuple(value)

    def fields(self, value: Any, kind: str) -> dict[str, Any]:
        """Attributes of an object of torch's class `kind`."""
        if type(value) is not Record or value.kind.name != kind or type(value.state) is not dict:
            raise self.bad(f"{kind} is expected, but there is something else")
        return value.state

    def bad(self, sentence: str) -> InputInvalid:
        return InputInvalid(f"{self.where}: {sentence}.")


def _whole(value: Any) -> bool:
    """Tell whether a value can be a byte offset."""
    return type(value) is int and 0 <= value < LARGEST
