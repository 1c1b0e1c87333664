"""Compares the optimizer steps of model-parallel and expert-parallel ranks.

DeepSpeed steps all groups of all ranks together, so another step means a file of another save.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.sources.deepspeed.zero_index import Optimizer

_STEP = "step"


def check_steps(files: Files, optimizers: Iterable[tuple[str, Optimizer]]) -> None:
    """Check that all ranks' optimizers are at one step.

    Args:
        files: of the checkpoint.
        optimizers: what to call the rank in a message, and its optimizer.

    Raises:
        InputInvalid: two of them are not.
    """
    first: tuple[str, set[str]] | None = None
    for place, optimizer in optimizers:
        found = _steps(files, optimizer)
        first = first or (place, found)
        if found != first[1]:
            raise InputInvalid(
                f"{files.folder.name}: the optimizer of {first[0]} is at step {_listed(first[1])}, "
                f"that of {place} at {_listed(found)}; the files are not of one step."
            )


def _steps(files: Files, optimizer: Optimizer) -> set[str]:
    """The steps of an optimizer's groups; the data-parallel ranks agree on each."""
    found: set[str] = set()
    for flat, settings in zip(optimizer.flats[0], optimizer.settings, strict=True):
        told = (flat.state.get(_STEP), settings.get(_STEP))
        found |= {_text(files, optimizer.files[0], each) for each in told if each is not None}
    return found


def _text(files: Files, file: str, value: Any) -> str:
    """A step as text that is the same for the same number."""
    if type(value) in (int, float):
        return f"{value:.60g}"
    if type(value) is not StoredTensor or value.count != 1:
        return f"a {type(value).__name__}"
    data = bytearray(value.nbytes)
    files.read_into(file, value.offset, memoryview(data))
    if value.dtype in ("float32", "float64", "int32", "int64"):
        return f"{np.frombuffer(data, dtype=value.dtype)[0].item():.60g}"
    return f"0x{data.hex()}"


def _listed(steps: set[str]) -> str:
    return ", ".join(sorted(steps)) or "none"
