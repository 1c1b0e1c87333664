"""Turns contents into an index and plain values.

Invariant: every key of an optimizer is proven to belong to a parameter; strides come from the
files; nothing is lost: what has no meaning of its own keeps its whole key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER
from wattmesh.reconfig.universal.archives.archive import Archive
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index import dtypes, placing
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.cover import prove
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.index import PARAM, Index, Segment, TensorEntry, build
from wattmesh.reconfig.universal.index.names import AVERAGE, EXTRA, HOOK, Names
from wattmesh.reconfig.universal.index.rules import Replicate
from wattmesh.reconfig.universal.sources import slots, ties
from wattmesh.reconfig.universal.sources.contents import (
    ArchivePlace,
    Contents,
    Decoded,
    Tensor,
)
from wattmesh.reconfig.universal.sources.dcp import groups
from wattmesh.reconfig.universal.sources.dcp import names as prefixes
from wattmesh.reconfig.universal.sources.dcp.chunks import SMALL, Chunks
from wattmesh.reconfig.universal.sources.dcp.groups import OptimizerGroups
from wattmesh.reconfig.universal.sources.dcp.names import FittingNames
from wattmesh.reconfig.universal.sources.plain import NotPlain, as_json, characters
from wattmesh.reconfig.universal.sources.source import BYTES, NO_CHOICES, Choices

_SEGMENT = 4 * CONTAINER
"""What a segment costs, in plain values."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The result: a proven index, `Source.values`, and the prefixes."""

    index: Index
    values: dict[str, Any]
    names: Names


def make(
    files: Files,
    contents: Contents,
    declared: Declared,
    names: Names | None = None,
    choices: Choices = NO_CHOICES,
) -> Entries:
    """Build the index.

    Args:
        files: the folder that places refer to.
        contents: what it holds.
        declared: layout rules, renames, and what numbers and averages mean.
        names: the prefixes, if known; otherwise they are found and proven.
        choices: used to find them.

    Raises:
        InputInvalid: the contents are damaged, or do not say what belongs together.
        CheckpointDamaged: a file is missing or too short.
    """
    where, allowance = files.folder.name, files.allowance
    chunks = Chunks(files)
    plain = dict(_values(files, chunks, contents))
    optimizers = groups.take(plain, declared, where, allowance)
    tensors = _once(
        (groups.renamed(name, optimizers, where), each)
        for key, each in contents.tensors.items()
        for name in groups.by_parameter(key, optimizers, where, allowance)
    )
    plain = _once((groups.renamed(key, optimizers, where), each) for key, each in plain.items())
    averages = _averages(tensors, declared)
    shapes = {fqn: each.shape for fqn, each in tensors.items() if fqn not in averages}
    keys = [*plain, *_keys_of(optimizers)]
    if names is None:
        found = prefixes.find(shapes, keys, where, allowance, choices)
    else:
        prefixes.prove(names, shapes, keys, where)
        found = FittingNames(names=names)
    rows = _Rows(files, chunks, found, declared, tensors=tensors, averages=averages)
    values = _Values.sorted(rows, plain, optimizers)
    rows.add_tensors()
    without = slots.check(values.slots_with(rows.slots), values.optimized, declared)
    index = rows.index()
    declared.check_used([*(entry.name for entry in index.entries), *index.tied])
    prove(index, allowance)
    return Entries(index, values.as_dict(contents.left_out, without), found.names)


def _once(pairs: Iterator[tuple[str, Any]] | Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InputInvalid(f"{key!r:.80} is there twice once numbers are replaced by names.")
        found[key] = value
    return found


def _keys_of(optimizers: Mapping[str, OptimizerGroups]) -> list[str]:
    """A key for each parameter that a group lists."""
    return [
        f"{prefix}{groups.GROUPS}.{name}.{groups.GROUPS}"
        for prefix, each in optimizers.items()
        for name in each.settings
    ]


def _averages(tensors: Mapping[str, Tensor], declared: Declared) -> dict[str, tuple[str, str]]:
    """(name, state) of the tensors that are declared to be averages, by FQN."""
    found: dict[str, tuple[str, str]] = {}
    for average in declared.averages:
        mine = [key for key in tensors if key.startswith(average.prefix) and key != average.prefix]
        if not mine or "." in average.slot or not average.slot:
            raise InputInvalid(
                f"[[average]] {average.prefix!r:.80}: no tensor has this prefix, or its slot "
                f"{average.slot!r:.80} is no single word."
            )
        found |= {
            key: (key.removeprefix(average.prefix), f"{AVERAGE}{average.slot}") for key in mine
        }
    return found


def _values(files: Files, chunks: Chunks, contents: Contents) -> Iterator[tuple[str, Any]]:
    """Yield every value as JSON; its place or itself, where it is not plain data."""
    allowance = files.allowance
    known: dict[bytes | ArchivePlace, tuple[Any, int]] = {}
    for fqn, place in contents.values.items():
        if isinstance(place, Decoded):
            try:
                yield fqn, as_json(place.value, allowance, place.where)
            except NotPlain:
                yield fqn, NotPlain
            continue
        # Small archives are cached by their bytes, which are equal for equal settings; larger ones
        # by place.
        ends = place.offset + place.length <= files.opened(place.file)[1]
        small = ends and place.length <= SMALL
        key: bytes | ArchivePlace = chunks.first(place, place.length) if small else place
        if key not in known:
            archive = Archive(files, place.file, place.offset, place.length)
            try:
                value = as_json(archive.value(), allowance, archive.where)
                known[key] = value, characters(value)
            except NotPlain:
                known[key] = NotPlain, 0
        else:
            allowance.written(known[key][1], files.folder.name)
        yield fqn, place if known[key][0] is NotPlain else known[key][0]


class _Rows:
    """The entries and segments while they are collected."""

    def __init__(
        self,
        files: Files,
        chunks: Chunks,
        found: FittingNames,
        declared: Declared,
        *,
        tensors: Mapping[str, Tensor],
        averages: Mapping[str, tuple[str, str]],
    ) -> None:
        self.files = files
        self.names = found.names
        self.more = [Names(found.names.model, optim) for optim in found.more]
        self.declared = declared
        self.entries: list[TensorEntry] = []
        self.segments: list[Segment] = []
        self.slots: dict[str, set[str]] = {}
        self._chunks = chunks
        self._tensors = tensors
        self._averages = averages

    def add_tensors(self) -> None:
        """Add every tensor."""
        for fqn, tensor in self._tensors.items():
            name, state = self._key(fqn)
            parameter = self._tensors.get(f"{self.names.model}{name}")
            name, slot = self.declared.name(name), self.slot_of(fqn)
            if setting := self.setting_of(fqn):
                of, what = self.declared.name(setting[0]), setting[1]
                name, state = f"{HOOK.optim}{groups.GROUPS}.{of}.{what}", EXTRA
            if state == PARAM:
                self.slots.setdefault(name, set())
            elif slot is not None:
                self.slots.setdefault(name, set()).add(state)
            shape: Shape | None = None if parameter is None else parameter.shape
            mine = state == PARAM or slot is not None or fqn in self._averages
            declared_rule = self.declared.rule(name) if mine else Replicate()
            rule = slots.rule(state, tensor.shape, shape, declared_rule)
            stored = placing.logical_shape(rule, tensor.shape)
            entry = TensorEntry(name=name, state=state, dtype=tensor.dtype, shape=stored, rule=rule)
            self._add(entry, tensor)

    def slot_of(self, fqn: str) -> tuple[str, str] | None:
        """(parameter, slot) of an optimizer's key; None for other keys."""
        found = (prefixes.slot_of(names, fqn) for names in (self.names, *self.more))
        return next((each for each in found if each is not None), None)

    def setting_of(self, fqn: str) -> tuple[str, str] | None:
        """(parameter, setting) of an optimizer's key; None for other keys."""
        found = (prefixes.setting_of(names, fqn) for names in (self.names, *self.more))
        return next((each for each in found if each is not None), None)

    def _key(self, fqn: str) -> tuple[str, str]:
        """(name, state) of a tensor, before renames."""
        if fqn in self._averages:
            name, state = self._averages[fqn]
            parameter = self._tensors.get(f"{self.names.model}{name}")
            if parameter is None or parameter.shape != self._tensors[fqn].shape:
                raise InputInvalid(
                    f"{self.files.folder.name}: {fqn!r:.80} is declared to be an average, but the "
                    f"model has no {name!r:.80} of its shape."
                )
            return name, state
        for names in self.more:
            if fqn.startswith(f"{names.optim}state."):
                return names.entry_key(fqn)
        return self.names.entry_key(fqn)

    def _add(self, entry: TensorEntry, tensor: Tensor) -> None:
        self.entries.append(entry)
        size = dtypes.size_of(tensor.dtype)
        self.files.allowance.made(_SEGMENT * len(tensor.chunks), self.files.folder.name)
        for box, place in tensor.chunks:
            stored = self._chunks.locate(place, tensor.dtype, box.shape)
            segment = Segment(
                entry=entry.key,
                file=place.file,
                offset=stored.offset,
                box=box,
                strides=stored.strides,
            )
            self.segments.extend(placing.place(entry.rule, segment, tensor.shape, size))

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


@dataclass(frozen=True, slots=True)
class _Values:
    """Plain values by kind."""

    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def sorted(
        cls, rows: _Rows, plain: Mapping[str, Any], optimizers: Mapping[str, OptimizerGroups]
    ) -> "_Values":
        """Sort all values; those that are not plain data become entries of bytes."""
        values, name_of = cls(), rows.declared.name
        for fqn, value in plain.items():
            if value is NotPlain:
                if rows.slot_of(fqn):
                    raise InputInvalid(
                        f"{rows.files.folder.name}: {fqn!r:.80} is neither a tensor nor plain "
                        "data; optimizers with such slots are not read."
                    )
                values.left_out.append(fqn)
            elif type(value) is ArchivePlace:
                rows.opaque(fqn, value)
            elif named := rows.setting_of(fqn):
                values.settings.setdefault(name_of(named[0]), {})[named[1]] = value
            elif named := rows.slot_of(fqn):
                values.numbers.setdefault(name_of(named[0]), {})[named[1]] = value
            else:
                values.other[fqn] = value
        mine = [names.optim for names in (rows.names, *rows.more)]
        for prefix, optimizer in optimizers.items():
            if prefix in mine:
                values.settings.update({name_of(k): v for k, v in optimizer.settings.items()})
            else:
                values.other[f"{prefix}{groups.GROUPS}"] = optimizer.settings
        return values

    @property
    def optimized(self) -> set[str]:
        """Parameters in the optimizer's groups."""
        return set(self.settings)

    def slots_with(self, found: Mapping[str, set[str]]) -> dict[str, set[str]]:
        """All slots by parameter: tensors and plain numbers."""
        names = {*found, *self.numbers}
        return {name: found.get(name, set()) | set(self.numbers.get(name, ())) for name in names}

    def as_dict(self, left_out: tuple[str, ...], without: tuple[str, ...]) -> dict[str, Any]:
        """Return them in the form of `Source.values`."""
        found = {
            "param_groups": self.settings,
            "slots": self.numbers,
            "other": self.other,
            "left_out": sorted([*self.left_out, *left_out]),
        }
        return {**found, "without_slots": list(without)} if without else found


def in_words(made: Entries) -> str:
    """What was found, for the screen."""
    found = f"prefixes {made.names.model!r} and {made.names.optim!r}"
    return found + slots.in_words(made.values.get("without_slots", ()))
