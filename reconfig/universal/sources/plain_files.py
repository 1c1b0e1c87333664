"""Reads the small files that trainers write beside tensors: schedules, loops, what was left out.

    meta.pt                      Lightning: all that is not sharded
    scheduler.bin, scheduler.pt  Accelerate and transformers
    common.pt                    Megatron: all that is not sharded
    trainer_state.json           transformers: where the training is

Invariant: every other file is named as left out; nothing is executed.
"""

import re
from collections.abc import Collection
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives.archive import Archive
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.files.regular_files import RegularFiles
from wattmesh.reconfig.universal.index.names import is_name
from wattmesh.reconfig.universal.sources.contents import Decoded

META, COMMON, TRAINER = "meta.pt", "common.pt", "trainer_state.json"
_SCHEDULER = re.compile(r"scheduler(?:_\d{1,4})?\.(?:bin|pt)")
_MOST_FILES = 1000
_MOST_NBYTES = 64 << 20


def read(files: Files, tensors: Collection[str]) -> tuple[dict[str, Decoded], tuple[str, ...]]:
    """Read what is beside the tensors.

    Args:
        files: the checkpoint's folder.
        tensors: files that were read already, or hold tensors.

    Returns:
        Values by `<file without its ending>.<key>`, and the names of the files left out.

    Raises:
        InputInvalid: a file that would be read is damaged.
    """
    values: dict[str, Decoded] = {}
    left_out: list[str] = []
    known = set(tensors)
    for each in sorted(files.folder.iterdir())[:_MOST_FILES]:
        name = each.name
        if each.is_dir() or name in known or not is_name(name):
            continue
        if name in (META, COMMON) or _SCHEDULER.fullmatch(name):
            values |= _archive(files, name)
        elif name == TRAINER:
            values["trainer_state"] = Decoded(_json(files, name), name)
        else:
            left_out.append(name)
    return values, tuple(left_out)


def position(values: dict[str, Any]) -> dict[str, int]:
    """The step that the files tell, from `Source.values["other"]`."""
    told = values.get("meta.global_step")
    trainer = values.get("trainer_state")
    if type(trainer) is dict:
        told = trainer.get("global_step")
    if type(told) is int and 0 <= told < documents.LARGEST:
        return {"step": told}
    return {}


def _archive(files: Files, name: str) -> dict[str, Decoded]:
    value = Archive(files, name).value()
    stem = name.rpartition(".")[0]
    if type(value) is not dict:
        return {stem: Decoded(value, name)}
    return {f"{stem}.{key}": Decoded(each, name) for key, each in value.items() if is_name(key)}


def _json(files: Files, name: str) -> Any:
    try:
        with RegularFiles(files.folder) as folder:
            return documents.load(folder.read(name, _MOST_NBYTES, files.allowance))
    except (OSError, ValueError) as error:
        raise InputInvalid(f"{files.folder.name}/{name} cannot be read ({error!s:.80}).") from error
