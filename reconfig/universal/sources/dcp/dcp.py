"""Opens a folder of torch.distributed.checkpoint: FSDP2, HSDP, TP, PP, EP; model and optimizer.

    .metadata     the chunks and their locations
    *.distcp      torch archives one after the other: one per chunk, one per plain value; or a
                  safetensors file
    meta.pt       of Lightning: everything that is not sharded

Invariant: every chunk's header was read and agrees with `.metadata` in dtype and shape; strides
come from the archive. Every key of the optimizer is proven to belong to a parameter.
"""

from pathlib import Path

from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import Names
from wattmesh.reconfig.universal.sources import plain_files
from wattmesh.reconfig.universal.sources.dcp import beside, chunks, entries, metadata, unpack
from wattmesh.reconfig.universal.sources.dcp.metadata import METADATA
from wattmesh.reconfig.universal.sources.source import (
    NO_CHOICES,
    Choices,
    Source,
    WatchedFiles,
    check_amount,
    fingerprints,
)


def open_dcp(
    folder: Path,
    declared: Declared,
    names: Names | None = None,
    allowance: Allowance | None = None,
    choices: Choices = NO_CHOICES,
) -> Source:
    """Open a DCP folder, or a model's and an optimizer's side by side.

    Args:
        folder: contains `.metadata`, or folders that do (`beside`).
        declared: layout rules and renames, by names without prefixes.
        names: the prefixes, if known; otherwise they are found and proven.
        allowance: the limits on reading; None for a new one.
        choices: what the folder may leave open.

    Raises:
        InputInvalid: it is damaged or not supported.
        CheckpointDamaged: a file is missing or too short.
    """
    allowance = allowance or Allowance()
    parts = beside.parts(folder)
    contents = (
        beside.joined(folder, parts, allowance) if parts else metadata.read(folder, allowance)
    )
    described = f"torch DCP, {len(parts)} folders" if parts else "torch DCP"
    metadata_files = [f"{part}/{METADATA}" for part in parts] or [METADATA]
    if unpack.is_packed(contents):
        with WatchedFiles(folder, allowance) as files:
            contents = unpack.unpack(files, contents, choices.unpack)
        folder, metadata_files = unpack.target_of(choices), []
        described += ", unpacked"
    with WatchedFiles(folder, allowance) as files:
        contents = chunks.with_safetensors(files, contents)
        metadata.refuse_shared_bytes(contents, folder.name)
        contents = beside.with_files(files, contents, read=bool(parts))
        made = entries.make(files, contents, declared, names, choices)
        seen = fingerprints(files, [*metadata_files, *made.index.files])
    check_amount(folder, made.index, seen)
    return Source(
        kind="dcp",
        described=f"{described}, {len(made.index.files)} files, {entries.in_words(made)}",
        folder=folder,
        index=made.index,
        values=made.values,
        position=plain_files.position(made.values["other"]),
        files=seen,
    )
