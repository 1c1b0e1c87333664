"""Opens a folder of torch.distributed.checkpoint: FSDP2, HSDP, TP, PP, EP; model and optimizer.

    .metadata     the chunks and their locations
    *.distcp      torch archives one after the other: one per chunk, one per plain value

Invariant: every chunk's header was read and agrees with `.metadata` in dtype and shape; strides
come from the archive. Every key of the optimizer is proven to belong to a parameter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER, Allowance
from wattmesh.reconfig.universal.archives.archive import Archive
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index import dtypes, placing
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.cover import prove
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.index import PARAM, Index, Segment, TensorEntry, build
from wattmesh.reconfig.universal.index.names import Names
from wattmesh.reconfig.universal.index.rules import Replicate, Rule
from wattmesh.reconfig.universal.sources import dcp_metadata, dcp_names, slots, ties
from wattmesh.reconfig.universal.sources.dcp_metadata import (
    METADATA,
    ArchivePlace,
    Contents,
    Tensor,
)
from wattmesh.reconfig.universal.sources.plain import NotPlain, as_json, characters
from wattmesh.reconfig.universal.sources.source import (
    BYTES,
    Source,
    WatchedFiles,
    check_amount,
    fingerprints,
)

_SMALL = 16 << 10
_HEADERS = 4
"""Most cached headers per kind of chunk; torch writes one."""

_SEGMENT = 4 * CONTAINER
"""What a segment costs, in plain values."""


def open_dcp(
    folder: Path,
    declared: Declared,
    names: Names | None = None,
    allowance: Allowance | None = None,
) -> Source:
    """Open a DCP folder.

    Args:
        folder: contains `.metadata`.
        declared: layout rules and renames, by names without prefixes.
        names: the prefixes, if known; otherwise they are found and proven.
        allowance: the limits on reading; None for a new one.

    Raises:
        InputInvalid: it is damaged or not supported.
        CheckpointDamaged: a file is missing or too short.
    """
    allowance = allowance or Allowance()
    contents = dcp_metadata.read(folder, allowance)
    shapes = {fqn: tensor.shape for fqn, tensor in contents.tensors.items()}
    if names is None:
        names = dcp_names.find(shapes, contents.values.keys(), folder.name, allowance)
    else:
        dcp_names.prove(names, shapes, contents.values.keys(), folder.name)
    with WatchedFiles(folder, allowance) as files:
        rows = _Rows(files, contents, names, declared)
        values = _Values.read(rows, contents.values)
        rows.tensors()
        slots.check(values.slots_with(rows.slots), values.optimized, declared)
        index = rows.index()
        declared.check_used([*(entry.name for entry in index.entries), *index.tied])
        prove(index, allowance)
        seen = fingerprints(files, [METADATA, *index.files])
    check_amount(folder, index, seen)
    count = len({file for file in index.files})
    return Source(
        kind="dcp",
        described=f"torch DCP, {count} files, prefixes {names.model!r} and {names.optim!r}",
        folder=folder,
        index=index,
        values=values.as_dict(),
        files=seen,
    )


class _Rows:
    """The entries and segments while they are collected."""

    def __init__(self, files: Files, contents: Contents, names: Names, declared: Declared) -> None:
        self.files = files
        self.names = names
        self.declared = declared
        self.entries: list[TensorEntry] = []
        self.segments: list[Segment] = []
        self.slots: dict[str, set[str]] = {}
        self._contents = contents
        self._headers: dict[tuple[str, Shape, int], list[_Header]] = {}

    def tensors(self) -> None:
        """Add every tensor."""
        for fqn, tensor in self._contents.tensors.items():
            name, state = self.names.entry_key(fqn)
            parameter = self._contents.tensors.get(f"{self.names.model}{name}")
            name = self.declared.name(name)
            # The rule does not apply to a slot that is a single number.
            same = parameter is not None and parameter.shape == tensor.shape
            rule = self.declared.rule(name) if same else Replicate()
            if state == PARAM:
                self.slots.setdefault(name, set())
            elif dcp_names.slot_of(self.names, fqn) is not None:
                self.slots.setdefault(name, set()).add(state)
            self._add(name, state, tensor, rule)

    def check_parameter(self, name: str) -> None:
        """Refuse a parameter in an optimizer's group that the model does not have."""
        if f"{self.names.model}{name}" not in self._contents.tensors:
            raise InputInvalid(
                f"{self.files.folder.name}: a group of the optimizer lists {name!r:.80}, which is "
                "no tensor of the model."
            )

    def _add(self, name: str, state: str, tensor: Tensor, rule: Rule) -> None:
        shape = placing.logical_shape(rule, tensor.shape)
        entry = TensorEntry(name=name, state=state, dtype=tensor.dtype, shape=shape, rule=rule)
        self.entries.append(entry)
        size = dtypes.size_of(tensor.dtype)
        allowance = self.files.allowance
        allowance.made(_SEGMENT * len(tensor.chunks), self.files.folder.name)
        for box, place in tensor.chunks:
            stored = self._chunk(place, tensor.dtype, box.shape)
            segment = Segment(
                entry=entry.key,
                file=place.file,
                offset=stored.offset,
                box=box,
                strides=stored.strides,
            )
            self.segments.extend(placing.place(rule, segment, tensor.shape, size))

    def index(self) -> Index:
        """Build the index; tied tensors are compared and kept once."""
        whole = build(self.entries, self.segments)
        tied = dict(self.declared.tied)
        twice = [entry for entry in whole.entries if entry.name in tied]
        if not twice:
            return replace(whole, tied=tied)
        prove(whole)
        for entry in twice:
            other = whole.row_of(tied[entry.name], entry.state)
            ties.check(self.files, whole, whole.row_of(*entry.key), other)
        kept = [entry for entry in self.entries if entry.name not in tied]
        segments = [each for each in self.segments if each.entry[0] not in tied]
        return build(kept, segments, tied)

    def opaque(self, fqn: str, place: ArchivePlace) -> None:
        """Add a value that is not plain data, as its bytes."""
        entry = TensorEntry(name=fqn, state=BYTES, dtype="uint8", shape=(place.length,))
        self.entries.append(entry)
        box = Box.whole(entry.shape)
        self.segments.append(
            Segment(entry=entry.key, file=place.file, offset=place.offset, box=box)
        )

    def _chunk(self, place: ArchivePlace, dtype: str, shape: Shape) -> StoredTensor:
        """Locate the elements of a chunk.

        Archives of equal chunks begin with the same bytes, which determine the elements' location;
        so a header is decoded once and only compared afterwards.
        """
        known = self._headers.setdefault((dtype, shape, place.length), [])
        end = self.files.opened(place.file)[1]
        for header in known:
            if place.offset + place.length <= end and self._starts_with(place, header.head):
                at = place.offset + len(header.head) + header.skipped
                return StoredTensor(at, dtype, shape, header.strides)
        archive = Archive(self.files, place.file, place.offset, place.length)
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
        near = place.offset < begin <= place.offset + _SMALL and begin <= stored.offset
        if near and len(known) < _HEADERS:
            head = self._read(place, begin - place.offset)
            known.append(_Header(head, stored.offset - begin, stored.strides))
        return stored

    def _starts_with(self, place: ArchivePlace, head: bytes) -> bool:
        return self._read(place, len(head)) == head

    def _read(self, place: ArchivePlace, count: int) -> bytes:
        self.files.allowance.read(count, f"{self.files.folder.name}/{place.file}")
        data = bytearray(count)
        self.files.read_into(place.file, place.offset, memoryview(data))
        return bytes(data)

    def values(self, places: Mapping[str, ArchivePlace]) -> Iterator[tuple[str, ArchivePlace, Any]]:
        """Yield every value as JSON; the class NotPlain for one that is not plain data."""
        allowance = self.files.allowance
        known: dict[bytes | ArchivePlace, tuple[Any, int]] = {}
        for fqn, place in places.items():
            # Small archives are cached by their bytes, which are equal for equal settings; larger
            # ones
            # by place.
            key = (self._bytes(place) if place.length <= _SMALL else b"") or place
            if key not in known:
                archive = Archive(self.files, place.file, place.offset, place.length)
                try:
                    value = as_json(archive.value(), allowance, archive.where)
                    known[key] = value, characters(value)
                except NotPlain:
                    known[key] = NotPlain, 0
            else:
                allowance.written(known[key][1], self.files.folder.name)
            yield fqn, place, known[key][0]

    def _bytes(self, place: ArchivePlace) -> bytes:
        """Read the archive at a place; b"" where the file ends before."""
        if place.offset + place.length > self.files.opened(place.file)[1]:
            return b""
        return self._read(place, place.length)


@dataclass(frozen=True, slots=True)
class _Header:
    """The first bytes of the archives of one kind of chunk; elements follow after `skipped`."""

    head: bytes
    skipped: int
    strides: Shape


@dataclass(frozen=True, slots=True)
class _Values:
    """Plain values by kind."""

    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, rows: _Rows, places: Mapping[str, ArchivePlace]) -> "_Values":
        """Read all values; those that are not plain data become entries of bytes."""
        values = cls()
        groups: dict[str, dict[str, Any]] = {}
        for fqn, place, value in rows.values(places):
            if value is NotPlain:
                rows.opaque(fqn, place)
            elif dcp_names.in_numbered_group(rows.names, fqn, places.keys()):
                group, _, setting = dcp_names.after_groups(rows.names, fqn).partition(".")
                groups.setdefault(group, {})[setting] = value
            elif named := dcp_names.setting_of(rows.names, fqn):
                values.settings.setdefault(rows.declared.name(named[0]), {})[named[1]] = value
            elif named := dcp_names.slot_of(rows.names, fqn):
                values.numbers.setdefault(rows.declared.name(named[0]), {})[named[1]] = value
            elif fqn == f"{rows.names.optim}param_groups" and type(value) is list:
                values.add_groups(value, rows)
            else:
                values.other[fqn] = value
        values.add_groups(list(groups.values()), rows)
        return values

    def add_groups(self, groups: list[Any], rows: _Rows) -> None:
        """Add the settings of an optimizer state dict that was not flattened."""
        for group in groups:
            params = group.get("params") if type(group) is dict else None
            if type(params) is not list or not all(type(each) is str for each in params):
                raise InputInvalid(
                    f"{rows.files.folder.name}: {rows.names.optim}param_groups does not name its "
                    "parameters; save the optimizer's state by name (get_optimizer_state_dict)."
                )
            rest = {key: value for key, value in group.items() if key != "params"}
            where = rows.files.folder.name
            rows.files.allowance.written(characters(rest) * len(params), where)
            for name in params:
                rows.check_parameter(name)
                self.settings[rows.declared.name(name)] = rest

    @property
    def optimized(self) -> set[str]:
        """Parameters in the optimizer's groups."""
        return set(self.settings)

    def slots_with(self, found: Mapping[str, set[str]]) -> dict[str, set[str]]:
        """All slots by parameter: tensors and plain numbers."""
        names = {*found, *self.numbers}
        return {name: found.get(name, set()) | set(self.numbers.get(name, ())) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """Return them in the form of `Source.values`."""
        return {
            "param_groups": self.settings,
            "slots": self.numbers,
            "other": self.other,
            "left_out": [],
        }
