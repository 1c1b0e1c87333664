"""Joins the indexes of model-parallel ranks: stages of a pipeline, and tensor-parallel ranks.

A name that several stages have is a shared module's, and is kept once. What tensor-parallel ranks
hold of a parameter is a copy or a slice of it; no shape tells which, so a rule must.

Invariant: copies that are dropped were compared with the one that is kept, byte by byte.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index import dtypes, placing
from wattmesh.reconfig.universal.index.box import Box, Shape
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
from wattmesh.reconfig.universal.index.rules import Replicate, Rule
from wattmesh.reconfig.universal.sources import slots as slot_check
from wattmesh.reconfig.universal.sources import ties
from wattmesh.reconfig.universal.sources.deepspeed.copied_ranks import CopiedRanks
from wattmesh.reconfig.universal.sources.deepspeed.tensor_rules import Said
from wattmesh.reconfig.universal.sources.source import check_amount, fingerprints, joined

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class RankIndex:
    """What one model-parallel rank holds, or one layer's file of it.

    Attributes:
        place: what to call it in messages: "stage 1".
        tensor: tensor-parallel rank.
        numbers: parameter -> slot -> plain number.
        trained: parameters in the optimizer's groups.
    """

    place: str
    tensor: int
    index: Index
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trained: frozenset[str] = frozenset()


class SliceRules(Protocol):
    """Who knows how tensor-parallel ranks hold tensors."""

    def said(self, name: str, logical: str) -> Said | None:
        """The rule of a tensor by DeepSpeed's and its logical name; None if nothing says so."""

    def check(self, name: str, rule: Rule, logical: Shape, stored: Sequence[Shape]) -> None:
        """Refuse a rule that the files contradict."""


def join(
    files: Files, parts: Sequence[RankIndex], tensor: int, layout: SliceRules, declared: Declared
) -> tuple[Index, dict[str, dict[str, Any]]]:
    """Join parts to one index under logical names; also return the slots that are plain numbers.

    Args:
        files: of the checkpoint.
        parts: stage after stage, with DeepSpeed's own names.
        tensor: number of tensor-parallel ranks.
        layout: is asked where that is more than one.
        declared: rules and renames.

    Raises:
        InputInvalid: copies differ, parts do not fit, no rule says how they do, or a slot is lost.
    """
    return _Joining(files, parts, tensor, layout, declared).result()


class _Joining:
    def __init__(
        self,
        files: Files,
        parts: Sequence[RankIndex],
        tensor: int,
        layout: SliceRules,
        declared: Declared,
    ) -> None:
        """Number all rows of all parts."""
        self.files, self.parts, self.tensor, self.declared = files, parts, tensor, declared
        self.layout = layout
        self.all = _stacked(parts)
        self.part_of = [part for part in parts for _ in part.index.entries]
        self.rules: dict[str, Rule] = {}
        self.same: dict[Key, list[int]] = {}
        for row, entry in enumerate(self.all.entries):
            self.same.setdefault(entry.key, []).append(row)
        self.first = {key: rows[0] for key, rows in self.same.items()}
        self.trained = frozenset(name for part in parts for name in part.trained)
        self.copied = CopiedRanks(files, self.all)

    def result(self) -> tuple[Index, dict[str, dict[str, Any]]]:
        """See `join`."""
        # Before copies are read and compared: they may not repeat the files' bytes for ever.
        check_amount(self.files.folder, self.all, fingerprints(self.files, self.all.files))
        entries: list[TensorEntry] = []
        moved = np.full(len(self.all.entries), -1, dtype=np.int64)
        loose: list[Segment] = []
        for key, places in self._places().items():
            kept = self._kept(key, places)
            if len(kept) > 1 and key[0] in self.trained:
                self.copied.look(next(iter(places)), kept)
            entry, segments = self._entry(key, kept)
            if segments is None:
                moved[kept[0]] = len(entries)
            else:
                loose += segments
            entries.append(entry)
        self.copied.refuse()
        index = self._index(entries, moved, loose)
        numbers = self._numbers()
        self._check(index, numbers)
        return index, numbers

    def _places(self) -> dict[Key, dict[str, dict[int, int]]]:
        """Rows by key, then place, then tensor-parallel rank."""
        found: dict[Key, dict[str, dict[int, int]]] = {}
        for row, (entry, part) in enumerate(zip(self.all.entries, self.part_of, strict=True)):
            found.setdefault(entry.key, {}).setdefault(part.place, {})[part.tensor] = row
        return found

    def _kept(self, key: Key, places: Mapping[str, Mapping[int, int]]) -> list[int]:
        """The rows that make up a tensor; other copies were compared with them."""
        first, *others = places.items()
        for place, rows in places.items():
            if len(rows) != self.tensor:
                lost = next(rank for rank in range(self.tensor) if rank not in rows)
                raise InputInvalid(
                    f"{key[0]} ({key[1]}): tensor-parallel rank {lost} of {place} does not hold "
                    "it, others do."
                )
        for place, rows in others:
            for rank in range(self.tensor):
                self._same(key, first[1][rank], rows[rank], first[0], place)
        kept = [first[1][rank] for rank in range(self.tensor)]
        if self.tensor == 1 or not self._is_copy(key, kept):
            return kept
        for rank in range(1, self.tensor):
            names = (f"tensor-parallel rank {each}" for each in (0, rank))
            self._same(key, kept[0], kept[rank], *names)
        return kept[:1]

    def _same(self, key: Key, one: int, other: int, here: str, there: str) -> None:
        left, right = self.all.entries[one], self.all.entries[other]
        why = "the files are not of one step, or a layout rule is missing."
        if here.startswith("stage") and "layer" not in there:
            why = (
                "a shared layer's tied_weight_attr names what its stages keep equal (`weight`), "
                "the rest are several parameters of one name."
            )
        same = (left.dtype, left.shape) == (right.dtype, right.shape)
        if not same or ties.first_difference(self.files, self.all, one, other):
            raise InputInvalid(
                f"{key[0]} ({key[1]}): {here} and {there} hold different values of it; {why}"
            )

    def _is_copy(self, key: Key, rows: Sequence[int]) -> bool:
        """Whether each tensor-parallel rank holds the whole tensor."""
        shape = self.all.entries[rows[0]].shape
        rows_of_param = self.first.get((key[0], PARAM))
        if rows_of_param is not None and shape != self.all.entries[rows_of_param].shape:
            return True
        return not shape or type(self._rule(key[0])) is Replicate

    def _rule(self, name: str) -> Rule:
        if name not in self.rules:
            logical = self.declared.name(name)
            rule: Rule | None = self.declared.rule(logical)
            if self.tensor > 1:
                said = self.layout.said(name, logical)
                rule = said.rule if said is not None else None
                if said is not None and said.by_default:
                    self._refuse_copies(name)
            if rule is None:
                raise InputInvalid(
                    f"{name}: {self.tensor} tensor-parallel ranks hold it, and nothing in the "
                    "files says whether as copies or as slices. Declare it in a [[rule]]: kind "
                    '"replicate", or "shard" with its dim.'
                )
            self.rules[name] = rule
        return self.rules[name]

    def _refuse_copies(self, name: str) -> None:
        """Refuse to join equal pieces that are slices by DeepSpeed's default only."""
        row, *rows = self.same[name, PARAM]
        if all(
            self.all.entries[row].shape == self.all.entries[at].shape
            and not ties.first_difference(self.files, self.all, row, at)
            for at in rows
        ):
            raise InputInvalid(
                f"{name}: DeepSpeed's universal_checkpoint_info lists it nowhere, which means "
                "slices along dim 0, but all ranks hold the same. Declare it in a [[rule]]: kind "
                '"replicate", or "shard" with its dim.'
            )

    def _entry(self, key: Key, kept: Sequence[int]) -> tuple[TensorEntry, list[Segment] | None]:
        """An entry under its logical name, and its segments where they are not just taken over."""
        pieces = [self.all.entries[row] for row in kept]
        first = pieces[0]
        name, state = self.declared.name(key[0]), key[1]
        param = self.first.get((key[0], PARAM))
        rule: Rule = Replicate()
        if param is None or first.shape == self.all.entries[param].shape or len(kept) > 1:
            rule = self._rule(key[0]) if first.shape else rule
        stored = _stacked_shape(key, pieces, rule.dim) if len(kept) > 1 else first.shape
        shape = placing.logical_shape(rule, stored)
        if self.tensor > 1 and state == PARAM:
            parts = [piece.shape for piece in pieces] * (self.tensor // len(kept))
            self.layout.check(key[0], rule, shape, parts)
        entry = TensorEntry(name=name, state=state, dtype=first.dtype, shape=shape, rule=rule)
        if len(kept) == 1 and placing.is_identity(rule):
            return entry, None
        return entry, list(self._placed(entry, kept, stored))

    def _placed(self, entry: TensorEntry, kept: Sequence[int], stored: Shape) -> Iterator[Segment]:
        """Segments of stacked slices in logical coordinates."""
        size, dim, begin = dtypes.size_of(entry.dtype), entry.rule.dim, 0
        for row in kept:
            piece = self.all.entries[row]
            rows = self.all.segments_of(row)
            count = (rows.stop - rows.start) * (2 * len(piece.shape) + 1)
            self.files.allowance.made(CONTAINER * count, self.files.folder.name)
            for at in range(rows.start, rows.stop):
                segment = self._segment(at, entry)
                for part in placing.unflattened(segment, piece.shape, size):
                    start = list(part.box.start)
                    start[dim] += begin
                    moved = replace(part, box=Box(tuple(start), part.box.shape))
                    yield from placing.place(entry.rule, moved, stored, size)
            begin += piece.shape[dim]

    def _segment(self, at: int, entry: TensorEntry) -> Segment:
        segments = self.all.segments
        flat = bool(segments.flat[at])
        box = segments.box(at, self.all.entries[int(segments.entry[at])])
        strides = tuple(segments.strides[at, : len(box.shape)].tolist())
        return Segment(
            entry=entry.key,
            file=self.all.files[int(segments.file[at])],
            offset=int(segments.offset[at]),
            box=box,
            flat=flat,
            strides=None if flat else strides,
        )

    def _index(
        self, entries: Sequence[TensorEntry], moved: Column, loose: Sequence[Segment]
    ) -> Index:
        segments = self.all.segments
        taken = segments.take(np.flatnonzero(moved[segments.entry] >= 0))
        taken = replace(taken, entry=moved[taken.entry])
        made = build(entries, loose)
        number = {name: at for at, name in enumerate(self.all.files)}
        to = np.array([number[name] for name in made.files], dtype=np.int64)
        rest = replace(made.segments, file=to[made.segments.file] if loose else made.segments.file)
        tied = {
            self.declared.name(alias): self.declared.name(name)
            for part in self.parts
            for alias, name in part.index.tied.items()
        } | dict(self.declared.tied)
        ties.check_aliases(tied, (entry.name for entry in entries))
        return Index(
            entries=made.entries,
            files=self.all.files,
            segments=sort_by_entry(joined([taken, rest])),
            tied=tied,
        )

    def _numbers(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for part in self.parts:
            for name, numbers in part.numbers.items():
                if found.setdefault(name, dict(numbers)) != numbers:
                    raise InputInvalid(
                        f"{name}: {part.place} holds other numbers of it than the stage before; "
                        "the files are not of one step."
                    )
        return {self.declared.name(name): numbers for name, numbers in found.items()}

    def _check(self, index: Index, numbers: Mapping[str, Mapping[str, Any]]) -> None:
        """Check that no slot is lost and every declaration was used."""
        trained = set(map(self.declared.name, self.trained))
        found: dict[str, set[str]] = {name: set(numbers.get(name, ())) for name in trained}
        for entry in index.entries:
            if entry.state != PARAM and entry.name in found:
                found[entry.name].add(entry.state)
        self.declared.check_used([*(entry.name for entry in index.entries), *index.tied])
        slot_check.check(found, trained, self.declared)


def _stacked(parts: Sequence[RankIndex]) -> Index:
    """All rows of all parts as one index, in which a key may be there several times."""
    files = tuple(dict.fromkeys(name for part in parts for name in part.index.files))
    number = {name: at for at, name in enumerate(files)}
    entries: list[TensorEntry] = []
    columns: list[Segments] = []
    for part in parts:
        segments = part.index.segments
        if len(segments):
            to = np.array([number[name] for name in part.index.files], dtype=np.int64)
            moved = replace(segments, entry=segments.entry + len(entries), file=to[segments.file])
            columns.append(moved)
        entries += part.index.entries
    return Index(entries=tuple(entries), files=files, segments=joined(columns))


def _stacked_shape(key: Key, pieces: Sequence[TensorEntry], dim: int) -> Shape:
    """Shape of slices along a dim, one after the other."""
    first = pieces[0]
    if not 0 <= dim < len(first.shape):
        raise InputInvalid(f"{key[0]}: dim {dim} of its rule is none of a slice {first.shape}.")
    for rank, piece in enumerate(pieces):
        others = [shape[:dim] + shape[dim + 1 :] for shape in (first.shape, piece.shape)]
        if piece.dtype != first.dtype or others[0] != others[1]:
            raise InputInvalid(
                f"{key[0]} ({key[1]}): tensor-parallel rank 0 holds {first.dtype} {first.shape}, "
                f"rank {rank} {piece.dtype} {piece.shape}; they are no slices along dim {dim}."
            )
    return (*first.shape[:dim], sum(piece.shape[dim] for piece in pieces), *first.shape[dim + 1 :])
