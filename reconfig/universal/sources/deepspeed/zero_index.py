"""Builds an index over ZeRO's flat buffers: for every (parameter, slot), bytes in ranks' files.

Invariant: segments are computed as columns, one by one only under a layout rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER
from wattmesh.reconfig.universal.archives.rebuild import brief
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index import dtypes, placing
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.index import (
    PARAM,
    Column,
    Index,
    Segment,
    Segments,
    TensorEntry,
    build,
    sort_by_entry,
)
from wattmesh.reconfig.universal.index.names import EXTRA, is_average, is_name
from wattmesh.reconfig.universal.sources import slots as slot_check
from wattmesh.reconfig.universal.sources import ties
from wattmesh.reconfig.universal.sources.deepspeed.zero import Flat, Fragments, Shapes
from wattmesh.reconfig.universal.sources.source import joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """All ranks' flat buffers.

    Attributes:
        files: by rank.
        names, shapes: of the parameters; `names` in order.
        flats: by rank, then group.
        fragments: the parameters' locations in `flats`.
        settings: of the base optimizer, by group.
        listed: group of every parameter, as `param_shapes` lists it.
    """

    files: tuple[str, ...]
    names: list[str]
    shapes: Shapes
    flats: Sequence[Sequence[Flat]]
    fragments: Fragments
    settings: list[dict[str, Any]]
    listed: Mapping[str, int]

    @property
    def groups(self) -> dict[str, int]:
        """The group of every parameter; where it has elements, that of the buffers they are in."""
        params, first = np.unique(self.fragments.param, return_index=True)
        groups = self.fragments.group[first].tolist()
        held = {self.names[param]: at for param, at in zip(params.tolist(), groups, strict=True)}
        return {**self.listed, **held}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model's files without the trained parameters.

    Attributes:
        files: in stage 3 by rank; the first one holds `whole`.
        groups: shapes of the trained parameters, by group.
        whole: buffers, and in stages 1 and 2 frozen parameters.
        frozen, frozen_parts: of frozen parameters in stage 3: shapes, and by rank a flat part.
        tied: alias -> name.
    """

    files: tuple[str, ...]
    groups: list[Shapes]
    whole: Mapping[str, StoredTensor]
    frozen: Shapes
    frozen_parts: Sequence[Mapping[str, Any]]
    tied: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Slot:
    """One slot of one group: the offset of its flat buffer, by rank."""

    state: str
    dtype: str
    base: list[int]


def make_index(
    files: Files,
    optimizer: Optimizer,
    model: Model,
    declared: Declared,
    *,
    alone: bool = True,
) -> tuple[Index, dict[str, dict[str, Any]]]:
    """Build the index; also return the slots that are plain numbers, by parameter.

    Args:
        files: of the checkpoint.
        optimizer: the flat buffers of all data-parallel ranks.
        model: the rest of the model.
        declared: rules and names.
        alone: whether these are all tensors; else whoever joins several checks their slots and
            the declarations.

    Raises:
        InputInvalid: a slot has another shape than its parameter, is missing, or differs between
            ranks; two tensors get the same name.
    """
    groups = range(len(optimizer.flats[0]) if optimizer.flats else 0)
    _charge(files, optimizer)
    read = [_slots(files, optimizer, group) for group in groups]
    of_name = optimizer.groups
    logical = {
        name: declared.name(name) for name in (*optimizer.names, *model.whole, *model.frozen)
    }
    tied = {declared.name(a): declared.name(b) for a, b in model.tied.items()} | dict(declared.tied)
    if alone:
        declared.check_used([*logical.values(), *tied])
    ties.check_aliases(tied, logical.values())
    numbers = {logical[n]: read[g].numbers for n, g in of_name.items() if read[g].numbers}
    if alone:
        _check_slots(optimizer, read, logical, declared)
    plan = _Plan(optimizer, read, logical, declared)
    boxes = [*plan.scalars(), *plan.ruled(), *_whole(model, logical), *_frozen(model, logical)]
    entries = [*plan.entries, *(entry for entry, _ in boxes if entry is not None)]
    loose = build(entries, [segment for _, segments in boxes for segment in segments], tied)
    names = (*optimizer.files, *model.files)
    segments = _renumbered(loose, names)
    return Index(
        entries=loose.entries,
        files=names,
        segments=sort_by_entry(joined([plan.flat_segments(), segments])),
        tied=loose.tied,
    ), numbers


def _charge(files: Files, optimizer: Optimizer) -> None:
    """Charge the allowance for the segments: a fragment has one per slot of its group."""
    stored = np.bincount(optimizer.fragments.group, minlength=1).tolist()
    first = optimizer.flats[0] if optimizer.flats else ()
    slots = [1 + len(flat.state) for flat in first]
    rows = sum(count * width for count, width in zip(stored, slots, strict=False))
    entries = sum(slots[group] for group in optimizer.groups.values())
    files.allowance.made(rows + CONTAINER * entries, files.folder.name)


@dataclass(frozen=True, slots=True)
class _Read:
    """A group's slots by form: of the parameters' shape, single elements, plain numbers."""

    flat: list[_Slot]
    single: dict[str, tuple[str, StoredTensor]]
    numbers: dict[str, Any]


def _slots(files: Files, optimizer: Optimizer, group: int) -> _Read:
    """Decode a group's slots, which must have the same form on every rank."""
    flats = [rank[group] for rank in optimizer.flats]
    base = [flat.master.offset for flat in flats]
    read = _Read([_Slot(PARAM, _one_dtype(flats, PARAM), base)], {}, {})
    for state in sorted({key for flat in flats for key in flat.state}, key=brief):
        values = [flat.state.get(state) for flat in flats]
        where = f"group {group}, slot {brief(state)}"
        if not is_name(state) or state in (PARAM, EXTRA) or is_average(state):
            raise InputInvalid(f"{where}: a slot may not have this name.")
        kinds = {_kind(value, flat) for value, flat in zip(values, flats, strict=True)}
        if kinds == {"none"}:
            continue
        if len(kinds) != 1 or "" in kinds:
            raise InputInvalid(
                f"{where}: it is neither of the parameters' shape nor a single number on every "
                "rank; a slot like this needs a rule of its own and is not supported."
            )
        (kind,) = kinds
        tensors = [value for value in values if type(value) is StoredTensor]
        if kind == "flat":
            dtype = _one_dtype(flats, state)
            read.flat.append(_Slot(state, dtype, [value.offset for value in tensors]))
        elif kind == "single":
            contents = {_bytes(files, n, v) for n, v in zip(optimizer.files, tensors, strict=True)}
            _all_equal(where, len(contents))
            read.single[state] = (optimizer.files[0], tensors[0])
        else:
            _all_equal(where, len(set(values)))
            read.numbers[state] = values[0]
    return read


def _kind(value: Any, flat: Flat) -> str:
    """Form of a slot on one rank; "" for an unsupported one."""
    if value is None:
        return "none"
    if type(value) in (int, float, bool):
        return "number"
    if type(value) is StoredTensor:
        # A rank's master is saved without its final padding, its slots with it.
        sizes = (flat.master.count, flat.master.count + flat.padding)
        if len(value.shape) == 1 and value.count in sizes and value.contiguous:
            return "flat"
        if value.count == 1:
            return "single"
    return ""


def _one_dtype(flats: Sequence[Flat], state: str) -> str:
    found = {
        flat.master.dtype if state == PARAM else flat.state[state].dtype for flat in flats
    }  # fmt: skip
    if len(found) != 1:
        raise InputInvalid(f"slot {brief(state)} has different dtypes on different ranks: {found}.")
    return str(found.pop())


def _all_equal(where: str, different: int) -> None:
    if different > 1:
        raise InputInvalid(
            f"{where}: ranks hold {different} different values; the files are not of one step."
        )


def _bytes(files: Files, name: str, tensor: StoredTensor) -> bytes:
    data = bytearray(tensor.nbytes)
    files.read_into(name, tensor.offset, memoryview(data))
    return bytes(data)


def _check_slots(
    optimizer: Optimizer, read: Sequence[_Read], logical: Mapping[str, str], declared: Declared
) -> None:
    of_group = [
        {each.state for each in group.flat[1:]} | set(group.single) | set(group.numbers)
        for group in read
    ]
    found = {logical[name]: of_group[group] for name, group in optimizer.groups.items()}
    slot_check.check(found, set(found), declared)


class _Plan:
    """Entries and segments of the optimizer state."""

    def __init__(
        self,
        optimizer: Optimizer,
        read: Sequence[_Read],
        logical: Mapping[str, str],
        declared: Declared,
    ) -> None:
        """Create the entries of flat buffers, by parameter, then slot."""
        self.optimizer = optimizer
        self.read = read
        self.logical = logical
        self.rules = [declared.rule(logical[name]) for name in optimizer.names]
        self.entries: list[TensorEntry] = []
        self.row: dict[tuple[int, str], int] = {}
        self._groups = optimizer.groups
        for param, name in enumerate(optimizer.names):
            group = self._groups.get(name, 0)
            rule, stored = self.rules[param], optimizer.shapes[name]
            shape = placing.logical_shape(rule, stored)
            for slot in read[group].flat if read else ():
                self.row[param, slot.state] = len(self.entries)
                entry = TensorEntry(name=logical[name], state=slot.state, dtype=slot.dtype,
                                    shape=shape, rule=rule)  # fmt: skip
                self.entries.append(entry)

    def flat_segments(self) -> Segments:
        """Columns of all fragments of parameters without a rule, in every slot."""
        fragments = self.optimizer.fragments
        plain = np.array([placing.is_identity(rule) for rule in self.rules], dtype=bool)
        parts = []
        for group, read in enumerate(self.read):
            mine = np.flatnonzero((fragments.group == group) & plain[fragments.param])
            params = np.unique(fragments.param[mine]).tolist()
            for slot in read.flat:
                rows = np.full(len(self.rules), -1, dtype=np.int64)
                rows[params] = [self.row[param, slot.state] for param in params]
                parts.append(_flat_columns(fragments, mine, rows, slot))
        return joined(parts)

    def scalars(self) -> list[tuple[TensorEntry | None, list[Segment]]]:
        """Entries of single-element slots, which all parameters of a group share."""
        found: list[tuple[TensorEntry | None, list[Segment]]] = []
        for name, group in self._groups.items():
            for state, (file, value) in self.read[group].single.items():
                entry = TensorEntry(name=self.logical[name], state=state, dtype=value.dtype,
                              shape=value.shape)  # fmt: skip
                box = Box.whole(value.shape)
                found.append(
                    (entry, [Segment(entry=entry.key, file=file, offset=value.offset, box=box)])
                )
        return found

    def ruled(self) -> list[tuple[TensorEntry | None, list[Segment]]]:
        """Segments of the parameters with a layout rule; their entries exist already."""
        found: list[tuple[TensorEntry | None, list[Segment]]] = []
        fragments = self.optimizer.fragments
        for param, rule in enumerate(self.rules):
            if placing.is_identity(rule):
                continue
            stored = self.optimizer.shapes[self.optimizer.names[param]]
            for at in np.flatnonzero(fragments.param == param).tolist():
                for slot in self.read[int(fragments.group[at])].flat:
                    entry = self.entries[self.row[param, slot.state]]
                    size = dtypes.size_of(slot.dtype)
                    rank = int(fragments.rank[at])
                    segment = Segment(
                        entry=entry.key,
                        file=self.optimizer.files[rank],
                        offset=slot.base[rank] + int(fragments.at[at]) * size,
                        box=Box((int(fragments.begin[at]),), (int(fragments.count[at]),)),
                        flat=True,
                    )
                    found.append((None, list(placing.place(rule, segment, stored, size))))
        return found


def _flat_columns(fragments: Fragments, mine: Column, rows: Column, slot: _Slot) -> Segments:
    size = dtypes.size_of(slot.dtype)
    rank, count = fragments.rank[mine], fragments.count[mine]
    return Segments(
        entry=rows[fragments.param[mine]],
        file=rank,
        offset=np.array(slot.base, dtype=np.int64)[rank] + fragments.at[mine] * size,
        nbytes=count * size,
        flat=np.ones(len(mine), dtype=np.int64),
        start=fragments.begin[mine][:, None],
        shape=count[:, None],
        strides=np.ones((len(mine), 1), dtype=np.int64),
    )


def _whole(
    model: Model, logical: Mapping[str, str]
) -> list[tuple[TensorEntry | None, list[Segment]]]:
    """Buffers and, in stages 1 and 2, frozen parameters."""
    found: list[tuple[TensorEntry | None, list[Segment]]] = []
    for name, tensor in model.whole.items():
        entry = TensorEntry(name=logical[name], state=PARAM, dtype=tensor.dtype, shape=tensor.shape)
        box = Box.whole(tensor.shape)
        segment = Segment(
            entry=entry.key,
            file=model.files[0],
            offset=tensor.offset,
            box=box,
            strides=tensor.strides,
        )
        found.append((entry, [segment]))
    return found


def _frozen(
    model: Model, logical: Mapping[str, str]
) -> list[tuple[TensorEntry | None, list[Segment]]]:
    """Frozen parameters of stage 3: equal parts by rank, the last one padded."""
    found: list[tuple[TensorEntry | None, list[Segment]]] = []
    ranks = len(model.frozen_parts)
    for name, shape in model.frozen.items():
        parts = [each.get(name) for each in model.frozen_parts]
        volume = Box.whole(shape).count
        size = -(-volume // ranks)
        if any(type(each) is not StoredTensor or each.count != size for each in parts):
            raise InputInvalid(
                f"{name} (param): it is frozen, and its {volume} elements are not stored as "
                f"{ranks} parts of {size}."
            )
        good = [each for each in parts if type(each) is StoredTensor]
        entry = TensorEntry(name=logical[name], state=PARAM, dtype=good[0].dtype, shape=shape)
        segments = []
        for rank, part in enumerate(good):
            begin = min(rank * size, volume)
            if part.dtype != entry.dtype or not part.contiguous:
                raise InputInvalid(
                    f"{name} (param): its parts differ in dtype or are no flat ones."
                )
            box = Box((begin,), (min(size, volume - begin),))
            if box.count:
                file = model.files[rank]
                segments.append(
                    Segment(entry=entry.key, file=file, offset=part.offset, box=box, flat=True)
                )
        found.append((entry, segments))
    return found


def _renumbered(index: Index, names: Sequence[str]) -> Segments:
    number = {name: at for at, name in enumerate(names)}
    to = np.array([number[name] for name in index.files], dtype=np.int64)
    segments = index.segments
    file = to[segments.file] if len(segments) else segments.file
    columns = {key: getattr(segments, key) for key in ("entry", "offset", "nbytes", "flat", "start",
                                                       "shape", "strides")}  # fmt: skip
    return Segments(file=file, **columns)
