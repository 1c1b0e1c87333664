"""Opens what Hugging Face's libraries write, and torch's Hugging Face storage writer.

    model.safetensors                           one file; or, of several models, model_1.safetensors
    <x>.safetensors.index.json, its files       shards: the index says which tensor is in which file
    shard-<R>-model-<K>-of-<N>.safetensors      torch: rank R's chunks
    pytorch_model.bin, its index and shards     the same, as torch archives
    optimizer.bin, optimizer.pt                 a trainer's optimizer

Invariant: the index and the files name the same tensors; a tensor is in one file, or its chunks
cover it. Files that nobody counts are read only where the caller says how many there are.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER, Allowance
from wattmesh.reconfig.universal.archives.archive import Archive
from wattmesh.reconfig.universal.archives.rebuild import holds_tensors
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.files.regular_files import RegularFiles
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import is_name
from wattmesh.reconfig.universal.sources import plain_files, safetensors_header
from wattmesh.reconfig.universal.sources.contents import (
    ArchivePlace,
    Contents,
    Decoded,
    ElementPlace,
    Tensor,
)
from wattmesh.reconfig.universal.sources.dcp import entries
from wattmesh.reconfig.universal.sources.dcp.chunks import saved_offsets
from wattmesh.reconfig.universal.sources.dcp.groups import GROUPS
from wattmesh.reconfig.universal.sources.source import (
    NO_CHOICES,
    Choices,
    Source,
    WatchedFiles,
    check_amount,
    fingerprints,
)

_SHARD = re.compile(r"shard-(\d{1,9})-model-(\d{1,9})-of-(\d{1,9})\.safetensors")
_MODEL = re.compile(r"(?:pytorch_)?(?:model|model_fsdp)(?:_\d{1,4})?\.(?:safetensors|bin)")
_INDEX = re.compile(r".+\.(?:safetensors|bin)\.index\.json")
_OPTIMIZER = re.compile(r"optimizer(?:_\d{1,4})?\.(?:bin|pt)")
_MOST_NAMES = 100_000
_INDEX_NBYTES = 256 << 20


def is_huggingface(folder: Path) -> bool:
    """Tell whether a folder holds safetensors files, or torch archives of a model."""
    return any(
        name.endswith(".safetensors") or _INDEX.fullmatch(name) or _MODEL.fullmatch(name)
        for name in (each.name for each in folder.iterdir())
    )


def open_huggingface(
    folder: Path,
    declared: Declared,
    allowance: Allowance | None = None,
    choices: Choices = NO_CHOICES,
) -> Source:
    """Open a folder of safetensors files, or of torch archives of a model.

    Args:
        folder: contains the files.
        declared: layout rules, renames, the names of numbered parameters.
        allowance: the limits on reading; None for a new one.
        choices: what the folder may leave open.

    Raises:
        InputInvalid: it is damaged, or does not say what belongs together.
        CheckpointDamaged: a file is missing or too short.
    """
    allowance = allowance or Allowance()
    names = sorted(each.name for each in folder.iterdir())[:_MOST_NAMES]
    with WatchedFiles(folder, allowance) as files:
        contents, what, read = _contents(files, names, choices)
        optimizers = [each for each in names if _OPTIMIZER.fullmatch(each)]
        if not choices.weights_only:
            contents = _with_optimizers(files, contents, optimizers)
            read = [*read, *optimizers]
        values, left_out = plain_files.read(files, read)
        contents = replace(contents, values={**contents.values, **values}, left_out=left_out)
        made = entries.make(files, contents, declared, None, choices)
        seen = fingerprints(files, dict.fromkeys([*read, *made.index.files]))
    check_amount(folder, made.index, seen)
    return Source(
        kind="huggingface",
        described=f"Hugging Face, {what}, {entries.in_words(made)}",
        folder=folder,
        index=made.index,
        values=made.values,
        position=plain_files.position(made.values["other"]),
        files=seen,
    )


def _contents(
    files: Files, names: Sequence[str], choices: Choices
) -> tuple[Contents, str, list[str]]:
    """The model's tensors, in words where they are, and the files that were read."""
    where = files.folder.name
    indexes = [each for each in names if _INDEX.fullmatch(each)]
    shards = [each for each in names if _SHARD.fullmatch(each)]
    whole = [each for each in names if each.endswith(".safetensors") or _MODEL.fullmatch(each)]
    if len(indexes) > 1:
        raise InputInvalid(f"{where}: it has two indexes, {indexes[0]} and {indexes[1]}; keep one.")
    if choices.shards is not None and not (shards and not indexes):
        raise InputInvalid(
            f"{where}: --shards is for torch's shard-*.safetensors without an index."
        )
    if indexes:
        mapping = _weight_map(files, indexes[0])
        held = [each for each in whole if each in set(mapping.values())]
        return _indexed(files, mapping), f"{len(held)} indexed files", [indexes[0], *held]
    if shards:
        if others := [each for each in whole if each not in shards]:
            raise InputInvalid(f"{where}: it holds both shards and {others[0]}; keep one of them.")
        return _sharded(files, shards, choices.shards), f"{len(shards)} shards", shards
    models = [each for each in whole if _MODEL.fullmatch(each)]
    if len(whole) == 1:
        return _merged(_file(files, whole[0], "")), "1 file", whole
    if len(models) == len(whole):
        parts = (_file(files, each, f"{each.rpartition('.')[0]}.") for each in models)
        return _merged(pair for part in parts for pair in part), f"{len(models)} models", models
    raise InputInvalid(
        f"{where}: it holds {len(whole)} files of tensors, {whole[0]} and others, and no index "
        "that says what belongs together."
    )


def _weight_map(files: Files, name: str) -> dict[str, str]:
    """The file of every tensor, as an index says."""
    where = f"{files.folder.name}/{name}"
    try:
        with RegularFiles(files.folder) as folder:
            text = folder.read(name, _INDEX_NBYTES, files.allowance)
        document = documents.mapping(documents.load(text), "it")
        mapping = documents.mapping(document["weight_map"], "weight_map")
        files.allowance.made(CONTAINER * len(mapping), where)
        for key, file in mapping.items():
            if not is_name(key) or PurePosixPath(documents.text(file, "a file")).name != file:
                raise ValueError(f"it puts {key!r:.80} into {file!r:.80}, which is no file of it")
    except (OSError, ValueError, KeyError) as error:
        raise InputInvalid(f"{where}: it is no index ({error!s:.200}).") from error
    if not mapping:
        raise InputInvalid(f"{where}: it lists no tensors.")
    return mapping


def _indexed(files: Files, mapping: Mapping[str, str]) -> Contents:
    found: dict[str, Tensor] = {}
    values: dict[str, ArchivePlace | Decoded] = {}
    for name in sorted(set(mapping.values())):
        for key, value in _file(files, name, ""):
            if mapping.get(key) != name:
                raise InputInvalid(
                    f"{files.folder.name}/{name}: it holds {key!r:.80}, which the index puts "
                    f"{'into ' + mapping[key] if key in mapping else 'nowhere'}."
                )
            if isinstance(value, Tensor):
                found[key] = value
            else:
                values[key] = value
    if lost := sorted(set(mapping) - set(found) - set(values)):
        raise CheckpointDamaged(
            f"{files.folder.name}/{mapping[lost[0]]}: it does not hold {lost[0]!r:.80}, which the "
            "index puts into it."
        )
    return Contents(found, values)


def _file(files: Files, name: str, prefix: str) -> Iterator[tuple[str, Tensor | Decoded]]:
    """Everything in one file."""
    if name.endswith(".safetensors"):
        header = safetensors_header.read(files, name)
        if any(any(start) for start in saved_offsets(header, name).values()):
            raise InputInvalid(f"{files.folder.name}/{name}: it holds chunks of larger tensors.")
        for key, stored in header.tensors.items():
            yield f"{prefix}{key}", Tensor.whole(name, stored)
        return
    value = Archive(files, name).value()
    if type(value) is not dict or not all(map(is_name, value)):
        raise InputInvalid(f"{files.folder.name}/{name}: it is no state dict of a model.")
    files.allowance.made(2 * CONTAINER * len(value), name)
    for key, each in value.items():
        if type(each) is StoredTensor:
            yield f"{prefix}{key}", Tensor.whole(name, each)
        elif holds_tensors(each):
            raise InputInvalid(
                f"{files.folder.name}/{name}: {key!r:.80} is no plain tensor (a sharded or sparse "
                "one, or several in a dict or list), and would be lost; save a flat state dict of "
                "whole, dense tensors."
            )
        else:
            yield f"{prefix}{key}", Decoded(each, name)


def _merged(pairs: Any) -> Contents:
    every = dict(pairs)
    tensors = {key: each for key, each in every.items() if isinstance(each, Tensor)}
    return Contents(tensors, {key: each for key, each in every.items() if key not in tensors})


def _sharded(files: Files, names: Sequence[str], count: int | None) -> Contents:
    """Chunks by rank, whose number no file tells."""
    where = files.folder.name
    if count != len(names):
        raise (InputInvalid if count is None else CheckpointDamaged)(
            f"{where}: {len(names)} shard files are there, and none of them says how many were "
            f"written, so a lost one would not be noticed; "
            + (
                f"say --shards {len(names)} if that is all."
                if count is None
                else f"--shards {count} says otherwise."
            )
        )
    chunks: dict[str, list[tuple[Box, ElementPlace]]] = {}
    for name in names:
        header = safetensors_header.read(files, name)
        starts = saved_offsets(header, name)
        for key, stored in header.tensors.items():
            if key not in starts:
                raise InputInvalid(f"{where}/{name}: it does not say where {key!r:.80} begins.")
            box = Box(starts[key], stored.shape)
            chunks.setdefault(key, []).append((box, ElementPlace(name, stored)))
    return Contents({key: _joined(key, each, where) for key, each in chunks.items()})


def _joined(key: str, chunks: list[tuple[Box, ElementPlace]], where: str) -> Tensor:
    kinds = {(place.tensor.dtype, len(box.shape)) for box, place in chunks}
    if len(kinds) != 1:
        raise InputInvalid(f"{where}: the chunks of {key!r:.80} differ in dtype or dims.")
    ends = [box.stop for box, _ in chunks]
    shape = tuple(max(each) for each in zip(*ends, strict=True))
    return Tensor(chunks[0][1].tensor.dtype, shape, tuple(chunks))


def _with_optimizers(files: Files, contents: Contents, names: Sequence[str]) -> Contents:
    """Add a trainer's optimizers, flattened: `optimizer.state.<parameter>.<slot>`."""
    tensors = dict(contents.tensors)
    values = dict(contents.values)
    for name in names:
        where, stem = f"{files.folder.name}/{name}", name.rpartition(".")[0]
        told = Archive(files, name).value()
        state = told.get("state") if type(told) is dict else None
        if type(told) is not dict or type(state) is not dict:
            raise InputInvalid(f"{where}: it is no state dict of an optimizer.")
        told, settings = _without_tensors(told)
        for key, value in told.items():
            if key != "state" and is_name(key):
                values[f"{stem}.{key}"] = Decoded(value, name)
        for key, setting in settings.items():
            tensors[f"{stem}.{GROUPS}.{key}"] = Tensor.whole(name, setting)
        for parameter, slots in state.items():
            known = type(parameter) is int or is_name(parameter)
            if not known or type(slots) is not dict or not all(map(is_name, slots)):
                raise InputInvalid(f"{where}: the state of a parameter is no dict of slots.")
            files.allowance.made(2 * CONTAINER * len(slots), where)
            for slot, value in slots.items():
                key = f"{stem}.state.{parameter}.{slot}"
                if type(value) is StoredTensor:
                    tensors[key] = Tensor.whole(name, value)
                else:
                    values[key] = Decoded(value, name)
    return Contents(tensors, values)


def _without_tensors(told: dict[Any, Any]) -> tuple[dict[Any, Any], dict[str, StoredTensor]]:
    """An optimizer's state without settings that are tensors; those by `<group>.<setting>`."""
    groups = told.get(GROUPS)
    if type(groups) is not list or not all(type(each) is dict for each in groups):
        return told, {}
    found = {
        f"{number}.{setting}": value
        for number, group in enumerate(groups)
        for setting, value in group.items()
        if type(value) is StoredTensor and is_name(setting)
    }
    kept = [
        {key: each for key, each in group.items() if f"{number}.{key}" not in found}
        for number, group in enumerate(groups)
    ]
    return {**told, GROUPS: kept}, found
