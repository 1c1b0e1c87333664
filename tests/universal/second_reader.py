"""A reader of universal checkpoints, written from docs/checkpoints.md alone; none of our code."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

SIZES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "complex128": 16, "complex64": 8,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2,
    "uint8": 1, "bool": 1,
}  # fmt: skip

Columns = dict[str, NDArray[np.int64]]
Raw = dict[tuple[str, str], tuple[str, tuple[int, ...], bytes]]


def read(folder: Path) -> Raw:
    """Everything in a checkpoint: (name, state) -> dtype, shape, elements row by row."""
    text = (folder / "manifest.json").read_bytes()
    assert (folder / "COMMIT").read_text() == hashlib.sha256(text).hexdigest() + "\n"
    manifest = json.loads(text)
    assert (manifest["format"], manifest["version"]) == ("wattmesh universal checkpoint", 1)
    for name, line in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert line == {"size": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}, name
    for name, line in manifest["data"].items():
        check_data_file(folder / name, line, manifest["kind"])
    index = json.loads((folder / "index.json").read_bytes())
    assert index["version"] == 1
    columns = read_columns((folder / "index.safetensors").read_bytes())
    assert ("digest" in columns) == manifest["hashed"]
    found: Raw = {}
    for number, (name, state, dtype, shape, _) in enumerate(index["entries"]):
        rows = [int(row) for row in np.flatnonzero(columns["entry"] == number)]
        found[name, state] = dtype, tuple(shape), tensor(folder, index, columns, number, rows)
    for alias, name in index["tied"].items():
        found.update({(alias, state): v for (n, state), v in list(found.items()) if n == name})
    return found


def check_data_file(path: Path, line: dict[str, Any], kind: str) -> None:
    """Hold a data file against the manifest."""
    seen = os.lstat(path)
    assert seen.st_size == line["size"]
    if kind == "virtual":
        assert (seen.st_mtime_ns, seen.st_ino) == (line["mtime_ns"], line["inode"])
    elif line["header_xxh3_128"]:
        header = path.read_bytes()[: line["header_nbytes"]]
        assert line["header_xxh3_128"] == xxhash.xxh3_128_hexdigest(header)


def read_columns(data: bytes) -> Columns:
    """A safetensors file of int64 columns."""
    begin = 8 + int.from_bytes(data[:8], "little")
    columns = {}
    for name, line in json.loads(data[8:begin]).items():
        first, last = (begin + at for at in line["data_offsets"])
        columns[name] = np.frombuffer(data[first:last], "<i8").reshape(line["shape"])
    return columns


def tensor(folder: Path, index: Any, columns: Columns, number: int, rows: list[int]) -> bytes:
    """All elements of one entry, row by row; every one of them must be somewhere."""
    _, _, dtype, shape, _ = index["entries"][number]
    size = SIZES[dtype]
    whole = np.zeros(shape, f"u{size}")
    seen = np.zeros(shape, bool)
    for row in rows:
        c = {name: column[row] for name, column in columns.items()}
        flat = c["flat"] == 1
        dims = 1 if flat else len(shape)
        start, box, strides = (c[name][:dims] for name in ("start", "shape", "strides"))
        with (folder / index["files"][c["file"]]).open("rb") as file:
            file.seek(c["offset"])
            raw = file.read(c["nbytes"])
        if "digest" in c:
            assert xxhash.xxh3_128_digest(raw) == c["digest"].astype(">i8").tobytes(), row
        items = np.frombuffer(raw, f"<u{size}")
        part = np.lib.stride_tricks.as_strided(items, box, strides * size)
        at = tuple(slice(a, a + n) for a, n in zip(start, box, strict=True))
        (whole.reshape(-1) if flat else whole)[at] = part
        (seen.reshape(-1) if flat else seen)[at] = True
    assert seen.all()
    return whole.tobytes()
