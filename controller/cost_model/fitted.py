"""The fitted cost model that the package carries: written by scripts/fit_cost_model.py.

Invariant: nothing of the file is executed; what does not have the expected names and sizes is
refused.
"""

import struct
import zlib
from functools import cache
from importlib.resources import as_file, files
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid
from wattmesh.named_file import read_named
from wattmesh.policies.parallelism.energy import PowerShares
from wattmesh.policies.parallelism.parameters import SIZE, pack, unpack
from wattmesh.policies.parallelism.predict import CostModel
from wattmesh.policies.parallelism.residuals.error_covariance import CENTRES, Habits
from wattmesh.policies.parallelism.residuals.known_errors import KnownErrors
from wattmesh.policies.parallelism.training_rows import PHASES, PLACES, Tags

NAME = "fitted.npz"
KINDS = {False: "dense", True: "experts"}
TEXTS = ("model", "gpu", "software", "number_format")
LARGEST_BYTES = 16 * 2**20

UNREADABLE = (
    *(OSError, ValueError, EOFError, RuntimeError, MemoryError, OverflowError),
    *(BadZipFile, zlib.error, struct.error, SyntaxError, TypeError),
)
"""What reading a damaged archive of arrays raises."""


def save(model: CostModel, path: Path) -> None:
    """Write a cost model."""
    arrays: dict[str, Any] = {"parameters": pack(model.parameters)}
    for kind, name in KINDS.items():
        known = model.known_errors[kind]
        for text in TEXTS:
            values = [getattr(tags, text) for tags in known.tags]
            arrays[f"{name}.{text}"] = np.array(values, dtype=np.str_)
        arrays[f"{name}.release_years"] = np.array([each.release_years for each in known.tags])
        arrays[f"{name}.place"] = np.array([each.place for each in known.tags])
        arrays[f"{name}.phases"] = np.array([each.phases for each in known.tags])
        arrays[f"{name}.errors"] = known.errors
        arrays[f"{name}.noise2"] = known.noise2
        arrays[f"{name}.habits"] = known.habits.logarithms
    np.savez_compressed(path, **arrays)


def read(path: Path) -> CostModel:
    """Read a cost model.

    Raises:
        InputInvalid: the file is no cost model of this version.
    """
    try:
        found = _arrays(path)
        parameters = _numbers(found, "parameters", (SIZE,))
        known_errors = {kind: _known_errors(found, name, kind) for kind, name in KINDS.items()}
    except (*UNREADABLE, KeyError) as error:
        raise InputInvalid(f"{path} is no cost model of this version: {error}") from error
    return CostModel(parameters=unpack(parameters), shares=PowerShares(), known_errors=known_errors)


def _arrays(path: Path) -> dict[str, Any]:
    """Read all arrays of a file.

    Raises:
        one of `UNREADABLE`.
    """
    with BytesIO(read_named(path, LARGEST_BYTES)) as data, ZipFile(data) as members:
        damaged = members.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} is damaged")
        data.seek(0)
        with np.load(data, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def _numbers(found: dict[str, Any], name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Take an array of finite numbers.

    Raises:
        KeyError: there is none. ValueError: it has another shape, or other things in it.
    """
    array = found[name]
    if array.dtype != np.float64 or array.shape != shape:
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, not float64 of {shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has values that are no numbers")
    return np.asarray(array)


def _texts(found: dict[str, Any], name: str) -> list[str]:
    array = found[name]
    if array.dtype.kind != "U" or array.ndim != 1:
        raise ValueError(f"{name} is no list of texts")
    return [str(text) for text in array]


def _known_errors(found: dict[str, Any], name: str, has_experts: bool) -> KnownErrors:
    """Put one kind of known errors together.

    Raises:
        KeyError, ValueError: an array is missing, or has another size than the others.
    """
    texts = [_texts(found, f"{name}.{text}") for text in TEXTS]
    count = len(texts[0])
    years = _numbers(found, f"{name}.release_years", (count,)).tolist()
    places, phases = (
        _numbers(found, f"{name}.{each}", (count, size) if count else (0,)).tolist()
        for each, size in (("place", PLACES), ("phases", PHASES))
    )
    tags = tuple(
        Tags(
            model=model,
            gpu=gpu,
            software=software,
            number_format=number_format,
            release_years=released,
            has_experts=float(has_experts),
            place=tuple(place),
            phases=tuple(shares),
        )
        for model, gpu, software, number_format, released, place, shares in zip(
            *texts, years, places, phases, strict=True
        )
    )
    noise2 = _numbers(found, f"{name}.noise2", (count,))
    if (noise2 <= 0).any():
        raise ValueError(f"{name}.noise2 has values that are no variances")
    return KnownErrors(
        tags=tags,
        errors=_numbers(found, f"{name}.errors", (count,)),
        habits=Habits(logarithms=_numbers(found, f"{name}.habits", CENTRES.shape)),
        noise2=noise2,
    )


@cache
def shipped() -> CostModel:
    """Read the model that the package carries."""
    with as_file(files("wattmesh.controller.cost_model") / NAME) as path:
        return read(path)
