"""The index on disk: names as JSON, numbers as int64 columns.

    index.json          {"version", "dims", "rules", "entries", "files", "tied"}
                        entries: [name, state, dtype, shape, number of its rule]
    index.safetensors   the columns of `Segments`, int64; `digest` where digests are known

A million segments take seconds to parse as JSON and tens of milliseconds as columns.

Invariant: an index from `read` is consistent in itself (lengths, ranges, known dtypes), whatever
the bytes were; only the cover proof and the files remain to be checked.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.archives.tensors import LARGEST, MAX_COUNT, MAX_DIMS
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.index import dtypes, rules
from wattmesh.reconfig.universal.index.index import COLUMNS, Column, Index, Segments, TensorEntry
from wattmesh.reconfig.universal.index.names import is_name

VERSION = 1
NAMES = "index.json"
NUMBERS = "index.safetensors"

_WIDE = ("start", "shape", "strides")
_REACH = MAX_COUNT // MAX_DIMS
"""Largest extent of strides along one dim, in elements, so that the sum over dims cannot
overflow."""


def names_to_bytes(index: Index) -> bytes:
    """Encode the text part of an index as canonical JSON."""
    kinds = list(dict.fromkeys(entry.rule for entry in index.entries))
    number = {rule: at for at, rule in enumerate(kinds)}
    document = {
        "version": VERSION,
        "dims": index.segments.dims,
        "rules": [rules.to_json(rule) for rule in kinds],
        "entries": [
            [entry.name, entry.state, entry.dtype, entry.shape, number[entry.rule]]
            for entry in index.entries
        ],
        "files": index.files,
        "tied": dict(index.tied),
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def numbers_to_bytes(index: Index) -> bytes:
    """Encode the columns of an index as safetensors."""
    columns: dict[str, Column] = {
        name: np.ascontiguousarray(getattr(index.segments, name), dtype=np.int64)
        for name in COLUMNS
    }
    if index.segments.digest is not None:
        columns["digest"] = np.ascontiguousarray(index.segments.digest, dtype=np.int64)
    return save(columns)


def read(names: bytes, numbers: bytes, where: str, allowance: Allowance | None = None) -> Index:
    """Decode an index from its two files.

    Args:
        names: content of index.json.
        numbers: content of index.safetensors.
        where: the checkpoint's name in errors.
        allowance: the checkpoint's, already charged for these bytes; None for an index alone.

    Raises:
        CheckpointDamaged: they are malformed or do not belong together.
        InputInvalid: the allowance is spent.
    """
    if allowance is not None:
        allowance.look(where)
    try:
        document = documents.mapping(documents.load(names), "it")
        if document["version"] != VERSION:
            raise CheckpointDamaged(
                f"{where}: {NAMES} has version {document['version']!r:.80}, this wattmesh reads "
                f"{VERSION}; use the wattmesh that wrote it."
            )
        known = [rules.from_json(documents.mapping(each, "a rule")) for each in document["rules"]]
        entries = tuple(_entry(line, known) for line in document["entries"])
        files = tuple(documents.text(each, "a file") for each in document["files"])
        tied = {
            documents.text(alias, "an alias"): documents.text(name, "a tied name")
            for alias, name in documents.mapping(document["tied"], "tied").items()
        }
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, InputInvalid) as error:
        raise CheckpointDamaged(f"{where}: {NAMES} is not an index ({error!s:.300}).") from error
    if len({entry.key for entry in entries}) != len(entries):
        raise CheckpointDamaged(f"{where}: {NAMES} lists a tensor twice.")
    segments = read_numbers(numbers, where)
    _check_ranges(segments, entries, files, where)
    return Index(entries=entries, files=files, segments=segments, tied=tied)


def read_numbers(numbers: bytes, where: str) -> Segments:
    """Decode the columns alone.

    Raises:
        CheckpointDamaged: they are not the columns of an index.
    """
    try:
        columns = load(numbers)
    except (SafetensorError, ValueError, KeyError, TypeError, struct.error) as error:
        raise CheckpointDamaged(f"{where}: {NUMBERS} cannot be read ({error}).") from error
    problem = _columns_problem(columns)
    if problem:
        raise CheckpointDamaged(f"{where}: {NUMBERS} {problem}.")
    return Segments(**{name: columns[name] for name in COLUMNS}, digest=columns.get("digest"))


def _entry(line: list[Any], known: list[rules.Rule]) -> TensorEntry:
    name, state, dtype, shape, rule = line
    if not is_name(name) or not is_name(state):
        raise ValueError(f"a tensor is called {name!r:.80} ({state!r:.80})")
    sizes = tuple(shape) if type(shape) is list else (-1,)
    counted = len(sizes) <= MAX_DIMS and all(type(n) is int and 0 <= n < LARGEST for n in sizes)
    if not counted or math.prod(sizes) > MAX_COUNT:
        raise ValueError(f"{name} has the shape {shape!r:.80}")
    if type(rule) is not int or not 0 <= rule < len(known):
        raise ValueError(f"{name} has the rule {rule!r:.80}")
    if type(dtype) is not str:
        raise ValueError(f"{name} has the dtype {dtype!r:.80}")
    dtypes.view_of(dtype)
    return TensorEntry(name=name, state=state, dtype=dtype, shape=sizes, rule=known[rule])


def _columns_problem(columns: Mapping[str, Any]) -> str:
    """Say what is wrong with the columns; "" when nothing is."""
    expected = {*COLUMNS, "digest"}
    if missing := set(COLUMNS) - set(columns):
        return f"lacks the column {min(missing)!r}"
    if unknown := set(columns) - expected:
        return f"has a column {min(unknown)!r} that no index has"
    if columns["entry"].ndim != 1 or columns["start"].ndim != 2:
        return "has columns that are no columns"
    rows, dims = len(columns["entry"]), columns["start"].shape[-1]
    if dims > MAX_DIMS:
        return f"has {dims} dims, {MAX_DIMS} is the most"
    for name, column in columns.items():
        width = {"digest": (2,)}.get(name, (dims,) if name in _WIDE else ())
        if column.dtype != np.int64 or column.shape != (rows, *width):
            return f"has a column {name!r} of {column.dtype} {column.shape}"
    return ""


def _check_ranges(
    segments: Segments, entries: tuple[TensorEntry, ...], files: tuple[str, ...], where: str
) -> None:
    """Refuse numbers out of range; `cover.prove` checks what they mean."""
    widest = max((len(entry.shape) for entry in entries), default=1)
    good = (
        _within(segments.entry, len(entries))
        and _within(segments.file, len(files))
        and bool((segments.offset >= 0).all())
        and all(_within(getattr(segments, name), MAX_COUNT + 1) for name in _WIDE)
        and bool(np.isin(segments.flat, (0, 1)).all())
        and bool((segments.entry[1:] >= segments.entry[:-1]).all())
        and segments.dims >= max(1, widest)
        and _in_place(segments, entries)
    )
    if not good:
        raise CheckpointDamaged(f"{where}: {NUMBERS} holds numbers that no index has.")


def _in_place(segments: Segments, entries: tuple[TensorEntry, ...]) -> bool:
    """Tell whether every box lies in its tensor, and its nbytes match its strides.

    Otherwise later sums and products of these numbers could overflow.
    """
    if not len(segments):
        return True
    dims = segments.dims
    shapes = np.ones((len(entries), dims), dtype=np.int64)
    flat = np.ones((len(entries), dims), dtype=np.int64)
    sizes = np.array([dtypes.size_of(entry.dtype) for entry in entries], dtype=np.int64)
    for row, entry in enumerate(entries):
        shapes[row, : len(entry.shape)] = entry.shape
        flat[row, 0] = math.prod(entry.shape)
    flat_one = segments.flat == 1
    span = np.ones(len(segments), dtype=np.int64)
    empty = np.zeros(len(segments), dtype=bool)
    for dim in range(dims):
        count, step = segments.shape[:, dim], segments.strides[:, dim]
        limit = np.where(flat_one, flat[segments.entry, dim], shapes[segments.entry, dim])
        if bool((segments.start[:, dim] > limit - count).any()):
            return False
        # Floating point shows an overflow that int64 would hide.
        most = float(count.max()) * float(step.max())
        if most > _REACH and bool((count.astype(np.float64) * step > _REACH).any()):
            return False
        span += (count - 1) * step
        empty |= count == 0
    nbytes = span * sizes[segments.entry]
    nbytes[empty] = 0
    return bool((segments.nbytes == nbytes).all())


def _within(column: Column, count: int) -> bool:
    return len(column) == 0 or bool(column.min() >= 0 and column.max() < count)
