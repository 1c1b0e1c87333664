"""Converts a source to a virtual or physical checkpoint: `wattmesh checkpoint convert`.

Invariant: a virtual checkpoint is not reported as verified, a physical one only once it is
published.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.files.staging import Progress, silent
from wattmesh.reconfig.universal.folder import CheckpointKind
from wattmesh.reconfig.universal.sources.source import Source
from wattmesh.reconfig.universal.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The result of a conversion.

    Attributes:
        states: number of tensors by state.
        nbytes: size of all tensors.
        wall_s: duration of the conversion.
        verified: whether it counts as verified.
    """

    source: Source
    target: Path
    kind: CheckpointKind
    states: Mapping[str, int]
    nbytes: int
    wall_s: float
    verified: bool


def convert(
    source: Source,
    target: Path,
    kind: CheckpointKind,
    *,
    jobs: int = 0,
    gentle: bool = False,
    progress: Progress = silent,
) -> Converted:
    """Convert a source to a checkpoint.

    Args:
        source: from `sources.detect.open_source`.
        target: folder that must not exist.
        kind: virtual or physical.
        jobs: processes of a physical one; 0 for as many as there are CPUs, at most 4.
        gentle: use idle CPU and disk priority (physical).
        progress: called with the bytes written (physical).

    Raises:
        InputInvalid: see `write_virtual`, `write_physical`.
        CheckpointDamaged: a universal source differs from its digests; its copy would get new ones
            and count as good.
    """
    begin = time.monotonic()
    if source.kind == "universal":
        _refuse_damaged(source, jobs)
    if kind is CheckpointKind.VIRTUAL:
        write_virtual(source, target)
    else:
        write_physical(source, target, jobs=jobs, gentle=gentle, progress=progress)
    return Converted(
        source=source,
        target=target,
        kind=kind,
        states=Counter(entry.state for entry in source.index.entries),
        nbytes=source.index.nbytes,
        wall_s=time.monotonic() - begin,
        verified=kind is CheckpointKind.PHYSICAL,
    )


def _refuse_damaged(source: Source, jobs: int) -> None:
    found = verify(source.folder, jobs=jobs).damage
    if found:
        raise CheckpointDamaged(
            f"{source.folder}: {found[0]}; it was not converted. `wattmesh checkpoint verify` "
            "lists all damage."
        )
