"""Compares two checkpoints tensor by tensor, by the logical digest of what each stores.

It uses neither planner nor reader nor segment digests, so it is independent of the conversion that
it checks.

Invariant: equal means that both hold the same tensors with the same bits, however they are stored.
"""

import re

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal import logical
from wattmesh.reconfig.universal.files.staging import Progress, silent
from wattmesh.reconfig.universal.folder import TRAINER, Checkpoint
from wattmesh.reconfig.universal.index.names import HOOK
from wattmesh.reconfig.universal.sources.source import Source

DIGEST = "digest"
"""Key in trainer.json: {"facts_xxh3_64": hash of the extra state in the job's digest, "beside":
names of stored tensors that are part of that extra state and not counted as tensors, "values":
whether the plain values are counted}."""


_FACTS = re.compile("[0-9a-f]{1,16}")


def differences(
    ours: Source, theirs: Source, *, jobs: int = 0, progress: Progress = silent
) -> list[str]:
    """List how two checkpoints differ, a sentence per tensor; empty when they are equal.

    Raises:
        CheckpointDamaged: bytes are missing from one of them.
    """
    mine = logical.by_tensor(ours.index, ours.folder, jobs=jobs, progress=progress)
    other = logical.by_tensor(theirs.index, theirs.folder, jobs=jobs, progress=progress)
    found = [f"{name} ({state}) is only in {ours.folder}" for name, state in mine.keys() - other]
    found += [f"{name} ({state}) is only in {theirs.folder}" for name, state in other.keys() - mine]
    for key in mine.keys() & other:
        if mine[key] != other[key]:
            found.append(f"{key[0]} ({key[1]}) differs between {ours.folder} and {theirs.folder}")
    return sorted(found)


def matches_memory(
    checkpoint: Checkpoint, *, jobs: int = 0, progress: Progress = silent
) -> bool | None:
    """Tell whether the stored state is what the job had in memory; None without its digest.

    Raises:
        CheckpointDamaged: bytes are missing, or the job's description of its digest is malformed.
    """
    told = checkpoint.trainer.get(DIGEST)
    if not checkpoint.manifest.logical_digest or not isinstance(told, dict):
        return None
    beside, facts = told.get("beside"), told.get("facts_xxh3_64")
    names = [each for each in beside if type(each) is str] if type(beside) is list else []
    if names != beside or type(facts) is not str or not _FACTS.fullmatch(facts):
        raise CheckpointDamaged(
            f"checkpoint {checkpoint.folder.name}: {TRAINER} does not say what its digest counts; "
            "use another checkpoint."
        )
    head = logical.head_of(checkpoint.manifest.logical_digest)
    found = logical.by_tensor(
        checkpoint.index, checkpoint.folder, jobs=jobs, progress=progress, head=head
    )
    for fqn in names:
        found.pop(HOOK.entry_key(fqn), None)
    values = checkpoint.trainer.get("values", {}) if told.get("values") else None
    total = logical.digest(found, int(facts, 16), values, head)
    return total == checkpoint.manifest.logical_digest
