"""Opens `torch_dist` checkpoints of Megatron-core (`megatron.core.dist_checkpointing`).

    metadata.json    which format this is, written last
    .metadata        of DCP: the chunks of tensors and of objects, and their locations
    common.pt        what all ranks have in common
    *.distcp         torch archives, one after the other

Names are those of the checkpoint, with layers by number; `param` is the fp32 master where there is
one, of which the working copy is a cast, and is dropped.

Invariant: a folder of another format, another version, or not finished is refused with one
sentence; nothing of the optimizer is read unless it names its parameters.
"""

from pathlib import Path
from typing import Any

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.archives import unpickle
from wattmesh.reconfig.universal.archives.rebuild import brief
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.files.regular_files import RegularFiles
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import HOOK
from wattmesh.reconfig.universal.sources.contents import Contents, Decoded, Tensor
from wattmesh.reconfig.universal.sources.dcp import entries, metadata, unpack
from wattmesh.reconfig.universal.sources.dcp.chunks import Chunks
from wattmesh.reconfig.universal.sources.dcp.metadata import METADATA
from wattmesh.reconfig.universal.sources.source import (
    NO_CHOICES,
    Choices,
    Source,
    WatchedFiles,
    check_amount,
    fingerprints,
)
from wattmesh.reconfig.universal.sources.torch_dist import common, keys, shards
from wattmesh.reconfig.universal.sources.torch_dist.common import COMMON, Common
from wattmesh.reconfig.universal.sources.torch_dist.keys import Sorted

CONFIG = "metadata.json"
_NBYTES = 1 << 16
_MARK, _SHARD = b'"sharded_backend"', b"/shard_"
_READ = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


def is_megatron(folder: Path) -> bool:
    """Tell whether a folder holds a checkpoint of Megatron-core, finished or not, of any format.

    Before it is finished only its objects tell it from a DCP folder beside another common.pt.
    """
    if _says(folder, CONFIG, _NBYTES, _MARK):
        return True
    return (folder / COMMON).is_file() and _says(folder, METADATA, unpickle.MAX_NBYTES, _SHARD)


def _says(folder: Path, name: str, most: int, mark: bytes) -> bool:
    """Tell whether a file is there and holds some bytes."""
    try:
        with RegularFiles(folder) as files:
            return mark in files.read(name, most, Allowance())
    except (OSError, InputInvalid, CheckpointDamaged):
        return False


def open_megatron(
    folder: Path,
    declared: Declared,
    allowance: Allowance | None = None,
    choices: Choices = NO_CHOICES,
) -> Source:
    """Open one iteration's folder.

    Args:
        folder: contains `metadata.json` and `.metadata`.
        declared: layout rules, renames and ties, by the checkpoint's names.
        allowance: the limits on reading; None for a new one.
        choices: `weights_only` leaves the optimizer out.

    Raises:
        InputInvalid: it is damaged or not supported.
        CheckpointDamaged: a file is missing or too short.
    """
    allowance = allowance or Allowance()
    _check_config(folder, allowance)
    contents = metadata.read(folder, allowance)
    where = folder.name
    if unpack.is_packed(contents):
        raise InputInvalid(f"{where}: its archives are compressed, which Megatron never does.")
    metadata.refuse_shared_bytes(contents, where)
    shards.check(contents.values, where)
    with WatchedFiles(folder, allowance) as files:
        told = common.read(files, weights_only=choices.weights_only)
        contents, left_out = _chosen(contents, weights_only=choices.weights_only)
        found = keys.sort(contents.tensors, Chunks(files), where, stacked=told.stacked)
        made = entries.make(files, _contents(contents, found, told, left_out), declared, HOOK)
        seen = fingerprints(files, [CONFIG, METADATA, COMMON, *made.index.files])
    check_amount(folder, made.index, seen)
    return Source(
        kind="megatron",
        described=_described(found, made, files=len(made.index.files)),
        folder=folder,
        index=made.index,
        values=made.values,
        position=told.position,
        files=seen,
    )


def _check_config(folder: Path, allowance: Allowance) -> None:
    """Refuse other formats, other versions, and a save that did not end."""
    where = f"{folder.name}/{CONFIG}"
    try:
        with RegularFiles(folder) as files:
            told = documents.load(files.read(CONFIG, _NBYTES, allowance))
    except FileNotFoundError as error:
        raise InputInvalid(
            f"{where}: it is missing; Megatron writes it last, so this was not saved to its end."
        ) from error
    except (OSError, ValueError) as error:
        raise InputInvalid(f"{where} cannot be read ({error!s:.80}).") from error
    if type(told) is not dict:
        raise InputInvalid(f"{where}: it is no object.")
    for key, wanted in _READ.items():
        value: Any = told.get(key, 1 if key.endswith("version") else None)
        if type(value) is not type(wanted) or value != wanted:
            raise InputInvalid(
                f"{where}: {key} is {brief(value)}; only {wanted!r} is read, so let Megatron save "
                "it as torch_dist."
            )
    if more := sorted(set(told) - set(_READ)):
        raise InputInvalid(f"{where}: it tells {brief(more[0])}, which this reader does not know.")


def _chosen(contents: Contents, *, weights_only: bool) -> tuple[Contents, tuple[str, ...]]:
    """The contents with or without the optimizer's, and the keys that were left out."""
    if not weights_only:
        return contents, ()
    every = (*contents.tensors, *contents.values)
    out = {key for key in every if keys.is_of_optimizer(key)}
    tensors = {key: each for key, each in contents.tensors.items() if key not in out}
    values = {key: each for key, each in contents.values.items() if key not in out}
    return Contents(tensors, values), tuple(sorted(out))


def _contents(
    contents: Contents, found: Sorted, told: Common, left_out: tuple[str, ...]
) -> Contents:
    """The same under DCP's keys, with the settings and the step of every parameter."""
    tensors = {**found.tensors, **told.tensors}
    values: dict[str, Any] = {**contents.values, **told.values}
    clash = tensors.keys() & values.keys() | (told.tensors.keys() & found.tensors.keys())
    clash |= contents.values.keys() & told.values.keys()
    if clash:
        raise InputInvalid(f"{COMMON}: {min(clash)!r:.80} is the name of another value, too.")
    if found.optimized and not told.groups:
        raise InputInvalid(
            f"{COMMON}: it tells no groups of the optimizer whose state is saved; read the weights "
            "only (--weights-only)."
        )
    if found.optimized:
        group = {**told.settings, "params": list(found.optimized)}
        values[f"{HOOK.optim}param_groups"] = Decoded([group], COMMON)
    for name in found.optimized if told.step is not None else ():
        key = f"{HOOK.optim}state.{name}.step"
        if key in tensors:
            continue
        if isinstance(told.step, StoredTensor):
            tensors[key] = Tensor.whole(COMMON, told.step)
        else:
            values[key] = Decoded(told.step, COMMON)
    return Contents(tensors, values, (*told.left_out, *left_out))


def _described(found: Sorted, made: entries.Entries, *, files: int) -> str:
    masters = f", {found.masters} weights from their fp32 masters" if found.masters else ""
    parameters = len({entry.name for entry in made.index.entries if entry.state == "param"})
    return f"Megatron torch_dist, {files} files, {parameters} parameters{masters}"
