"""The fitted cost model that the package carries: written by scripts/fit_cost_model.py.

Invariant: nothing of the file is executed; what does not have the expected names and sizes is
refused.
"""

from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from wattmesh.errors import InputInvalid
from wattmesh.policies.parallelism.energy import PowerShares
from wattmesh.policies.parallelism.known_errors import CENTRES, Habits, KnownErrors
from wattmesh.policies.parallelism.parameters import SIZE, pack, unpack
from wattmesh.policies.parallelism.predict import CostModel
from wattmesh.policies.parallelism.training_rows import Tags

NAME = "fitted.npz"
KINDS = {False: "dense", True: "experts"}
TEXTS = ("model", "gpu", "software", "number_format")


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
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        parameters = found["parameters"]
        if parameters.shape != (SIZE,) or not np.isfinite(parameters).all():
            raise ValueError(f"{parameters.shape} parameters")
        known_errors = {kind: _known_errors(found, name, kind) for kind, name in KINDS.items()}
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise InputInvalid(f"{path} is no cost model of this version: {error}") from error
    return CostModel(parameters=unpack(parameters), shares=PowerShares(), known_errors=known_errors)


def _known_errors(found: dict[str, Any], name: str, has_experts: bool) -> KnownErrors:
    """Put one kind of known errors together.

    Raises:
        KeyError, ValueError: an array is missing, or has another size than the others.
    """
    habits, errors = found[f"{name}.habits"], found[f"{name}.errors"]
    if habits.shape != CENTRES.shape:
        raise ValueError(f"{habits.shape} habits")
    texts = (found[f"{name}.{text}"].tolist() for text in TEXTS)
    years, places = found[f"{name}.release_years"].tolist(), found[f"{name}.place"].tolist()
    tags = tuple(
        Tags(
            model=model,
            gpu=gpu,
            software=software,
            number_format=number_format,
            release_years=released,
            has_experts=float(has_experts),
            place=tuple(place),
        )
        for model, gpu, software, number_format, released, place in zip(
            *texts, years, places, strict=True
        )
    )
    if not len(tags) == len(errors) == len(found[f"{name}.noise2"]):
        raise ValueError("arrays of different lengths")
    return KnownErrors(
        tags=tags,
        errors=errors,
        habits=Habits(logarithms=habits),
        noise2=found[f"{name}.noise2"],
    )


@cache
def shipped() -> CostModel:
    """Read the model that the package carries."""
    with as_file(files("wattmesh.controller.cost_model") / NAME) as path:
        return read(path)
