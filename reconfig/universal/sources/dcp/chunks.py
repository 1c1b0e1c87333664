"""Locates the elements of a chunk: in a torch archive, or in a safetensors file.

torch writes `FileSystemWriter(serialization_format=SAFETENSORS)` as one safetensors file at the
end of each `.distcp`, and gives all of its tensors that one offset. It keeps one chunk of a tensor
per file; of a second one only the place is left, which is refused.

Invariant: a chunk's header was read and agrees with what the contents say, in dtype and shape.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives.archive import Archive
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.sources import safetensors_header
from wattmesh.reconfig.universal.sources.contents import (
    ArchivePlace,
    Contents,
    ElementPlace,
    Place,
    Tensor,
)
from wattmesh.reconfig.universal.sources.dcp.metadata import METADATA
from wattmesh.reconfig.universal.sources.safetensors_header import SafetensorsHeader

SMALL = 16 << 10
_HEADERS = 4
"""Most cached headers per kind of chunk; torch writes one."""

_LENGTH_NBYTES, _BEGINS = 8, b"{"
"""A safetensors file: a length, then JSON. An archive has its compression method, 0, there."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The first bytes of the archives of one kind of chunk; elements follow after `skipped`."""

    head: bytes
    skipped: int
    strides: Shape


class Chunks:
    """Locates chunks in the files of one folder."""

    def __init__(self, files: Files) -> None:
        """Read nothing yet."""
        self._files = files
        self._known: dict[tuple[str, Shape, int], list[_Head]] = {}

    def locate(self, place: Place, dtype: str, shape: Shape) -> StoredTensor:
        """Locate the elements of a chunk.

        Archives of equal chunks begin with the same bytes, which determine the elements' location;
        so a header is decoded once and only compared afterwards.

        Raises:
            InputInvalid: it holds something else.
            CheckpointDamaged: the file is missing or too short.
        """
        if isinstance(place, ElementPlace):
            return place.tensor
        known = self._known.setdefault((dtype, shape, place.length), [])
        end = self._files.opened(place.file)[1]
        for header in known:
            if place.offset + place.length <= end and self._starts_with(place, header.head):
                at = place.offset + len(header.head) + header.skipped
                return StoredTensor(at, dtype, shape, header.strides)
        archive = Archive(self._files, place.file, place.offset, place.length)
        stored = archive.value()
        if type(stored) is not StoredTensor:
            raise InputInvalid(
                f"{archive.where}: a tensor is expected, but it holds something else."
            )
        if (stored.dtype, stored.shape) != (dtype, shape):
            raise InputInvalid(
                f"{archive.where}: the chunk is {stored.dtype} {stored.shape}; {METADATA} says "
                f"{dtype} {shape}."
            )
        begin, _ = archive.member("data/0") if stored.count else (stored.offset, 0)
        near = place.offset < begin <= place.offset + SMALL and begin <= stored.offset
        if near and len(known) < _HEADERS:
            head = self.first(place, begin - place.offset)
            known.append(_Head(head, stored.offset - begin, stored.strides))
        return stored

    def first(self, place: ArchivePlace, count: int) -> bytes:
        """Read the first bytes of an archive."""
        self._files.allowance.read(count, f"{self._files.folder.name}/{place.file}")
        data = bytearray(count)
        self._files.read_into(place.file, place.offset, memoryview(data))
        return bytes(data)

    def _starts_with(self, place: ArchivePlace, head: bytes) -> bool:
        return self.first(place, len(head)) == head


def with_safetensors(files: Files, contents: Contents) -> Contents:
    """Locate the chunks of files that hold a safetensors file instead of archives.

    Raises:
        InputInvalid: such a file is damaged, or lost a chunk when it was written.
        CheckpointDamaged: a file is missing or too short.
    """
    begins = _safetensors(files, contents)
    headers = {name: safetensors_header.read(files, name, at) for name, at in begins.items()}
    if not headers:
        return contents
    starts = {name: saved_offsets(header, name) for name, header in headers.items()}
    for fqn, place in contents.values.items():
        late = isinstance(place, ArchivePlace) and place.offset + place.length > begins.get(
            place.file, place.offset + place.length
        )
        if late:
            raise InputInvalid(f"{files.folder.name}: {fqn!r:.80} lies in the tensors' bytes.")
    tensors = {
        fqn: replace(
            tensor,
            chunks=tuple(
                (box, _found(fqn, tensor, box, place, headers=headers, starts=starts))
                for box, place in tensor.chunks
            ),
        )
        for fqn, tensor in contents.tensors.items()
    }
    return replace(contents, tensors=tensors)


def saved_offsets(header: SafetensorsHeader, name: str) -> Mapping[str, Shape]:
    """The start of each tensor's chunk, as torch's safetensors files tell; empty for others.

    Raises:
        InputInvalid: what they tell is malformed.
    """
    texts = header.metadata.items()
    told = next((text for key, text in texts if key == "DCP_SHARDING_INFO"), None)
    if told is None:
        return {}
    try:
        known = json.loads(told)
        found = {key: tuple(known[key]["saved_offsets"]) for key in header.tensors}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputInvalid(f"{name}: its DCP_SHARDING_INFO is damaged ({error!s:.80}).") from error
    for key, start in found.items():
        whole = all(type(each) is int and 0 <= each < 1 << 48 for each in start)
        if not whole or len(start) != len(header.tensors[key].shape):
            raise InputInvalid(f"{name}: its DCP_SHARDING_INFO gives {key!r:.80} no start.")
    return found


def _safetensors(files: Files, contents: Contents) -> dict[str, int]:
    """The files whose tensors are a safetensors file, and where that begins."""
    offsets: dict[str, set[int]] = {}
    for tensor in contents.tensors.values():
        for _, place in tensor.chunks:
            if isinstance(place, ArchivePlace):
                offsets.setdefault(place.file, set()).add(place.offset)
    found = {}
    for name, starts in offsets.items():
        (at, *others) = starts
        if not others and at + _LENGTH_NBYTES < files.opened(name)[1]:
            data = bytearray(1)
            files.read_into(name, at + _LENGTH_NBYTES, memoryview(data))
            if bytes(data) == _BEGINS:
                found[name] = at
    return found


def _found(
    fqn: str,
    tensor: Tensor,
    box: Box,
    place: Place,
    *,
    headers: Mapping[str, SafetensorsHeader],
    starts: Mapping[str, Mapping[str, Shape]],
) -> Place:
    """The place of a chunk's elements, if its file is a safetensors file."""
    header = headers.get(place.file) if isinstance(place, ArchivePlace) else None
    if header is None:
        return place
    stored = header.tensors.get(fqn)
    start = starts[place.file].get(fqn, box.start)
    if stored is None or (stored.dtype, stored.shape, start) != (
        tensor.dtype,
        box.shape,
        box.start,
    ):
        raise InputInvalid(
            f"{place.file}: it does not hold the chunk of {fqn!r:.80} at {box.start}; torch's "
            "safetensors format keeps one chunk of a tensor per file, so another one was lost when "
            "it was saved. Save it in torch's own format."
        )
    return ElementPlace(place.file, stored)
