"""From any source to a checkpoint of either kind: what `wattmesh checkpoint convert` does.

Invariant: a virtual checkpoint is never said to be verified, a physical one only when it is
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
from wattmesh.reconfig.universal.files.staging import Fence, Progress, silent, unfenced
from wattmesh.reconfig.universal.folder import Kind
from wattmesh.reconfig.universal.sources.source import Source
from wattmesh.reconfig.universal.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What a conversion made.

    Attributes:
        states: number of tensors by state. `nbytes`: of all tensors. `wall_s`: of making it.
        verified: whether it counts as verified already.
    """

    source: Source
    target: Path
    kind: Kind
    states: Mapping[str, int]
    nbytes: int
    wall_s: float
    verified: bool


def convert(
    source: Source,
    target: Path,
    kind: Kind,
    *,
    jobs: int = 0,
    gentle: bool = False,
    progress: Progress = silent,
    fence: Fence = unfenced,
) -> Converted:
    """Make a checkpoint of a source.

    Args:
        source: as `sources.detect.open_source` gives it.
        target: must not exist.
        kind: to make.
        jobs: processes of a physical one; 0 for as many as there are CPUs, at most 4.
        gentle: run behind everybody else (physical).
        progress: told the bytes written (physical).
        fence: see `staging.staged`.

    Raises:
        InputInvalid: see `write_virtual`, `write_physical`.
        CheckpointDamaged: a source of our own differs from its digests: its copy would get new
            ones, and count as good.
    """
    begin = time.monotonic()
    if source.kind == "universal":
        _refuse_damaged(source, jobs)
    if kind is Kind.VIRTUAL:
        write_virtual(source, target, fence=fence)
    else:
        write_physical(source, target, jobs=jobs, gentle=gentle, progress=progress, fence=fence)
    return Converted(
        source=source,
        target=target,
        kind=kind,
        states=Counter(entry.state for entry in source.index.entries),
        nbytes=source.index.nbytes,
        wall_s=time.monotonic() - begin,
        verified=kind is Kind.PHYSICAL,
    )


def _refuse_damaged(source: Source, jobs: int) -> None:
    found = verify(source.folder, jobs=jobs).damage
    if found:
        raise CheckpointDamaged(
            f"{source.folder}: {found[0]}; nothing was made of it. `wattmesh checkpoint verify` "
            "lists all damage."
        )
