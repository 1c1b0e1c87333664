"""The index on disk: names as JSON, numbers as columns.

    index.json          {"version", "dims", "rules", "entries", "files", "tied"}
                        entries: [name, state, dtype, shape, number of its rule]
    index.safetensors   the columns of `Segments`, int64; `digest` where digests are known

A million segments take seconds to parse as JSON and tens of milliseconds as columns.

Invariant: what `read` gives was checked for its own consistency (lengths, ranges, known dtypes),
whatever the bytes were; only the cover proof and the files themselves remain to be checked.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal import dtypes, rules
from wattmesh.reconfig.universal.index import COLUMNS, Column, Entry, Index, Segments

VERSION = 1
NAMES = "index.json"
NUMBERS = "index.safetensors"

_WIDE = ("start", "shape", "strides")


def names_to_bytes(index: Index) -> bytes:
    """Write what is text of an index: canonical JSON."""
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
    """Write the columns of an index."""
    columns: dict[str, Column] = {
        name: np.ascontiguousarray(getattr(index.segments, name), dtype=np.int64)
        for name in COLUMNS
    }
    if index.segments.digest is not None:
        columns["digest"] = np.ascontiguousarray(index.segments.digest, dtype=np.int64)
    return save(columns)


def read(names: bytes, numbers: bytes, where: str) -> Index:
    """Read an index from its two files.

    Raises:
        CheckpointDamaged: they are no index, or not of one another; `where` names the checkpoint.
    """
    try:
        document = json.loads(names)
        if document["version"] != VERSION:
            raise CheckpointDamaged(
                f"{where}: {NAMES} has version {document['version']!r}, this wattmesh reads "
                f"{VERSION}; use the wattmesh that wrote it."
            )
        known = [rules.from_json(each) for each in document["rules"]]
        entries = tuple(_entry(line, known) for line in document["entries"])
        files = tuple(str(each) for each in document["files"])
        tied = {str(alias): str(name) for alias, name in document["tied"].items()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, InputInvalid) as error:
        raise CheckpointDamaged(f"{where}: {NAMES} is not an index ({error}).") from error
    except RecursionError as error:
        raise CheckpointDamaged(f"{where}: {NAMES} is nested too deeply.") from error
    if len({entry.key for entry in entries}) != len(entries):
        raise CheckpointDamaged(f"{where}: {NAMES} lists a tensor twice.")
    segments = read_numbers(numbers, where)
    _check_ranges(segments, entries, files, where)
    return Index(entries=entries, files=files, segments=segments, tied=tied)


def read_numbers(numbers: bytes, where: str) -> Segments:
    """Read the columns alone.

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


def _entry(line: list[Any], known: list[rules.Rule]) -> Entry:
    name, state, dtype, shape, rule = line
    sizes = tuple(shape)
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"{name} has the shape {shape}")
    if type(rule) is not int or rule < 0:
        raise ValueError(f"{name} has the rule {rule}")
    dtypes.view_of(dtype)
    return Entry(name=str(name), state=str(state), dtype=dtype, shape=sizes, rule=known[rule])


def _columns_problem(columns: Mapping[str, Any]) -> str:
    """Say what is wrong with the columns; "" when nothing is."""
    expected = {*COLUMNS, "digest"}
    if missing := set(COLUMNS) - set(columns):
        return f"lacks the column {min(missing)!r}"
    if unknown := set(columns) - expected:
        return f"has a column {min(unknown)!r} that no index has"
    rows, dims = len(columns["entry"]), columns["start"].shape[-1]
    for name, column in columns.items():
        width = {"digest": (2,)}.get(name, (dims,) if name in _WIDE else ())
        if column.dtype != np.int64 or column.shape != (rows, *width):
            return f"has a column {name!r} of {column.dtype} {column.shape}"
    return ""


def _check_ranges(
    segments: Segments, entries: tuple[Entry, ...], files: tuple[str, ...], where: str
) -> None:
    """Refuse numbers that no index has; what they mean is for the cover proof to say."""
    dims = np.array([len(entry.shape) for entry in entries], dtype=np.int64)
    good = (
        _within(segments.entry, len(entries))
        and _within(segments.file, len(files))
        and bool((segments.offset >= 0).all() and (segments.nbytes >= 0).all())
        and bool((segments.start >= 0).all() and (segments.shape >= 0).all())
        and bool(np.isin(segments.flat, (0, 1)).all())
        and bool((segments.entry[1:] >= segments.entry[:-1]).all())
        and segments.dims >= int(dims.max(initial=1))
    )
    if not good:
        raise CheckpointDamaged(f"{where}: {NUMBERS} holds numbers that no index has.")


def _within(column: Column, count: int) -> bool:
    return len(column) == 0 or bool(column.min() >= 0 and column.max() < count)
