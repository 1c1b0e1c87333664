"""An unsharded state on disk, to compare across launches: one npz file without pickles."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.durable import write_bytes
from wattmesh.reconfig.equivalence.whole import WholeState

_FACTS = "facts of the state"


def write_whole(path: Path, whole: WholeState) -> None:
    """Write a state atomically."""
    facts = {"dtypes": dict(whole.dtypes), "plain": dict(whole.plain), "disputed": whole.disputed}
    text = json.dumps(facts, sort_keys=True).encode()
    arrays: dict[str, NDArray[Any]] = {**whole.arrays, _FACTS: np.frombuffer(text, np.uint8)}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, buffer.getvalue())


def read_whole(path: Path) -> WholeState:
    """Read a file of `write_whole`."""
    with np.load(path, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files if name != _FACTS}
        facts = json.loads(found[_FACTS].tobytes())
    return WholeState(
        arrays=arrays,
        dtypes=facts["dtypes"],
        plain=facts["plain"],
        disputed=tuple(facts["disputed"]),
    )
