"""Writes parameters as Hugging Face safetensors: one file, or shards with an index.

Names, tensors and files follow `save_pretrained`: tied tensors are written once, a shard ends
before it would exceed `max_shard_bytes`, and `model.safetensors.index.json` maps names to shards.

Invariant: elements are copied, or cast as the file's metadata says, and never changed otherwise.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.exports.casts import cast_of
from wattmesh.reconfig.universal.exports.stream import pieces
from wattmesh.reconfig.universal.exports.target import Target, exported
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.files.staging import Progress, silent
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.data_header import data_header
from wattmesh.reconfig.universal.index.declared import Rename
from wattmesh.reconfig.universal.index.index import PARAM, Index, TensorEntry

SHARD_BYTES = 5 * 10**9
"""Default `max_shard_size` of `save_pretrained`."""

CASTS = ("float32", "bfloat16")
"""Dtypes that floating-point parameters may be written in."""

_FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of the export: `row` of the index, under `name`, cast to `dtype`."""

    row: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def export(
    index: Index,
    files: Files,
    target: Path,
    *,
    dtype: str = "float32",
    renames: Sequence[Rename] = (),
    max_shard_bytes: int = SHARD_BYTES,
    progress: Progress = silent,
) -> None:
    """Write the parameters to the new folder `target`.

    Args:
        index: of the checkpoint; only the state "param" is written.
        files: the files that it points to.
        target: a folder that does not exist yet.
        dtype: "float32" or "bfloat16", for all floating-point parameters of 16 bits and more;
            others (integers, bool, float8) are copied as they are.
        renames: applied one after the other; each must change a name.
        max_shard_bytes: most bytes of tensors in a file; a larger tensor has its own file.
        progress: called with the bytes written.

    Raises:
        InputInvalid: an unknown dtype, a rename that matches nothing or makes two names equal, or a
            target that cannot be written.
        CheckpointDamaged: bytes are missing.
    """
    if dtype not in CASTS:
        raise InputInvalid(f"export: dtype {dtype!r} is none of {', '.join(CASTS)}.")
    if max_shard_bytes < 1:
        raise InputInvalid(f"export: shards of {max_shard_bytes} bytes hold nothing.")
    tensors = _tensors(index, dtype, renames)
    shards = _shards(tensors, max_shard_bytes)
    reader = Reader(index, files)
    with exported(target, progress) as folder:
        names = _file_names(len(shards))
        for name, shard in zip(names, shards, strict=True):
            _write_shard(folder, name, shard, reader)
        if len(shards) > 1:
            weight_map = {
                tensor.name: name
                for name, shard in zip(names, shards, strict=True)
                for tensor in shard
            }
            total = sum(tensor.nbytes for tensor in tensors)
            document = {"metadata": {"total_size": total}, "weight_map": weight_map}
            text = json.dumps(document, indent=2, sort_keys=True) + "\n"
            folder.write("model.safetensors.index.json", text.encode())


def _tensors(index: Index, dtype: str, renames: Sequence[Rename]) -> list[_Tensor]:
    rows = [row for row, entry in enumerate(index.entries) if entry.state == PARAM]
    if not rows:
        raise InputInvalid("export: the checkpoint holds no parameters.")
    names = _renamed([index.entries[row].name for row in rows], renames)
    return [
        _tensor(row, name, index.entries[row], dtype) for row, name in zip(rows, names, strict=True)
    ]


def _tensor(row: int, name: str, entry: TensorEntry, dtype: str) -> _Tensor:
    written = dtype if entry.dtype in _FLOATS else entry.dtype
    count = entry.nbytes // dtypes.size_of(entry.dtype)
    return _Tensor(row, name, written, entry.shape, count * dtypes.size_of(written))


def _renamed(names: Sequence[str], renames: Sequence[Rename]) -> list[str]:
    found = list(names)
    for rename in renames:
        changed = [rename(name) for name in found]
        if changed == found:
            raise InputInvalid(f"export: rename {rename.match.pattern!r} changes no name.")
        found = changed
    first: dict[str, str] = {}
    for old, new in zip(names, found, strict=True):
        if first.setdefault(new, old) != old:
            raise InputInvalid(f"export: {first[new]} and {old} would both be called {new!r}.")
    return found


def _shards(tensors: Sequence[_Tensor], limit: int) -> list[list[_Tensor]]:
    """Fill files in order; in each, wide elements come first so that all are aligned."""
    shards: list[list[_Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return [sorted(shard, key=lambda each: -dtypes.size_of(each.dtype)) for shard in shards]


def _file_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]


def _write_shard(folder: Target, name: str, tensors: Sequence[_Tensor], reader: Reader) -> None:
    """Write one safetensors file: length of the header, header, tensors without gaps."""
    entries = reader.index.entries
    casts = {
        f"{entries[tensor.row].dtype} -> {tensor.dtype}"
        for tensor in tensors
        if entries[tensor.row].dtype != tensor.dtype
    }
    with folder.file(name) as out:
        out.write(_header(tensors, sorted(casts)))
        for tensor in tensors:
            cast = cast_of(entries[tensor.row].dtype, tensor.dtype)
            for piece in pieces(reader, tensor.row, cast=cast):
                out.write(piece)


def _header(tensors: Sequence[_Tensor], casts: Sequence[str]) -> bytes:
    metadata = {"cast": "; ".join(casts) + " (to nearest, ties to even)"} if casts else {}
    named = [(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors]
    return data_header(named, metadata=metadata, alignment=8)[0]
