"""A model's and an optimizer's DCP folder side by side, as Accelerate writes them.

    pytorch_model_fsdp_<N>/    `model.<name>`
    optimizer_<N>/             `optimizer.state.<name>.<slot>`, `optimizer.param_groups`

Invariant: with one of each the keys stay as they are; with more of one, the folder's name and a
dot come first, so that all are carried and the caller says which belong together.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.sources import plain_files
from wattmesh.reconfig.universal.sources.contents import ArchivePlace, Contents, Decoded, Tensor
from wattmesh.reconfig.universal.sources.dcp import metadata
from wattmesh.reconfig.universal.sources.dcp.metadata import METADATA

_MODEL = re.compile(r"(?:pytorch_model_fsdp|model)(?:_\d{1,4})?")
_OPTIMIZER = re.compile(r"(?:optimizer|optim)(?:_\d{1,4})?")
_MOST = 1000


def parts(folder: Path) -> tuple[str, ...]:
    """Names of the folders side by side: models and their optimizers; none for one folder."""
    if (folder / METADATA).is_file():
        return ()
    names = sorted(each.name for each in folder.iterdir())[:_MOST]
    models = [each for each in names if _MODEL.fullmatch(each) and _is_dcp(folder / each)]
    optimizers = [each for each in names if _OPTIMIZER.fullmatch(each) and _is_dcp(folder / each)]
    return (*models, *optimizers) if models and optimizers else ()


def joined(folder: Path, names: Sequence[str], allowance: Allowance) -> Contents:
    """Read the metadata of all folders, as one whose files are below `folder`.

    Raises:
        InputInvalid: one is damaged, or two have the same keys.
        CheckpointDamaged: one is missing.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, ArchivePlace | Decoded] = {}
    count = {True: 0, False: 0}
    for name in names:
        count[_MODEL.fullmatch(name) is not None] += 1
    alone = max(count.values()) == 1
    for name in names:
        found = metadata.read(folder / name, allowance)
        for key, tensor in found.tensors.items():
            chunks = tuple((box, _below(name, place)) for box, place in tensor.chunks)
            tensors[_new(key, name, {*tensors, *values}, alone)] = replace(tensor, chunks=chunks)
        for key, value in found.values.items():
            values[_new(key, name, {*tensors, *values}, alone)] = _below(name, value)
    return Contents(tensors, values)


def with_files(files: Files, contents: Contents, *, read: bool) -> Contents:
    """Add what lies beside the tensors, where `read` or Lightning's file says so."""
    if not read and not (files.folder / plain_files.META).is_file():
        return contents
    known = {METADATA}
    for tensor in contents.tensors.values():
        known |= {place.file for _, place in tensor.chunks}
    known |= {each.file for each in contents.values.values() if isinstance(each, ArchivePlace)}
    values, left_out = plain_files.read(files, known)
    return replace(contents, values={**contents.values, **values}, left_out=left_out)


def _is_dcp(folder: Path) -> bool:
    return not folder.is_symlink() and (folder / METADATA).is_file()


def _below(name: str, place: Any) -> Any:
    return replace(place, file=f"{name}/{place.file}") if type(place) is ArchivePlace else place


def _new(key: str, name: str, known: set[str], alone: bool) -> str:
    found = key if alone else f"{name}.{key}"
    if found in known:
        raise InputInvalid(f"{name}: {key!r:.80} is in another folder beside it, too.")
    return found
