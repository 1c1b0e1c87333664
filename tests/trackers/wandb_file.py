"""The records in an offline run of Weights & Biases, by the package's own classes.

The package ships no reader in Python since 0.31 (wandb-core reads in Go). A file is a log of
LevelDB's form: blocks of 32 KiB, each record in pieces with a head of 7 bytes.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

RECORD: Any = wandb_internal_pb2.__dict__["Record"]
"""The class of a record; the package ships no types for it."""

BLOCK, HEAD, FILE_HEAD = 32768, 7, 7
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Yield every record, oldest first."""
    data, at, held = path.read_bytes(), FILE_HEAD, b""
    while at + HEAD <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        held += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (FULL, LAST):
            record = RECORD()
            record.ParseFromString(held)
            held = b""
            yield record


def history(path: Path) -> list[dict[str, Any]]:
    """Read the rows of history."""
    rows = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({"".join(e.nested_key) or e.key: json.loads(e.value_json) for e in items})
    return rows


def metrics(path: Path) -> list[Any]:
    """Read how series were defined: their names, and the axis of each."""
    found = (each for each in records(path) if each.WhichOneof("record_type") == "metric")
    return [each.metric for each in found]
