"""Deletes old checkpoints: `decide` chooses them with reasons (pure), `prune` deletes them.

Never deleted: the newest ones, the newest verified one, protected ones, those that a running job
may have been resumed from, those that a virtual checkpoint points to, and damaged ones, which a
person must look at.

Invariant: COMMIT is removed first, durably, then the folder is renamed; so a crash leaves nothing
that looks like a checkpoint.
"""

import os
import secrets
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wattmesh import durable
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.launch.attempt import highest_attempt, try_lock
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.universal import record
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.folder import (
    COMMIT,
    FORMAT,
    CheckpointKind,
    manifest_bytes,
    open_checkpoint,
)

Inode = tuple[int, int]

DELETED = ".deleted"
"""Suffix of the hidden name of a checkpoint during its deletion; a crash may leave one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneCandidate:
    """The properties of a checkpoint folder that pruning depends on.

    Attributes:
        step: training step by its name, else by its trainer.json; -1 where neither has it.
        published_ns: when COMMIT was written; 0 when it is missing.
        problem: why it cannot be opened; "" when it can.
        links: (inode, link count) of each data file; for a virtual one, of the files that it
            points to.
    """

    name: str
    step: int = -1
    published_ns: int = 0
    problem: str = ""
    verified: bool = False
    virtual: bool = False
    nbytes: int = 0
    links: tuple[tuple[Inode, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PruneDecision:
    """Whether a checkpoint is kept, and why. `nbytes`: size of its data files."""

    name: str
    kept: bool
    why: str
    nbytes: int = 0


def prune(
    folder: Path,
    *,
    keep: int,
    protected: Collection[str] = (),
    dry_run: bool = False,
    holds_lock: bool = False,
) -> list[PruneDecision]:
    """Delete checkpoints beyond the newest `keep` of a folder; return all verdicts, newest first.

    Args:
        folder: of checkpoints; a run's folder or any other.
        keep: number of checkpoints, at least 1.
        protected: names that are kept.
        dry_run: delete nothing, only return the verdicts.
        holds_lock: the caller is the run itself, and names what it resumed from in `protected`.

    Raises:
        InputInvalid: `keep` < 1, there is no such folder, or a checkpoint cannot be deleted.
    """
    if keep < 1:
        raise InputInvalid(f"prune: keep {keep} would leave no checkpoint; keep at least 1.")
    if not folder.is_dir():
        raise InputInvalid(f"{folder} is no folder of checkpoints.")
    with _launch(folder, holds_lock=holds_lock) as launched_ns:
        verdicts = decide(
            candidates(folder), keep=keep, protected=protected, launched_ns=launched_ns
        )
        if not dry_run:
            for left in folder.glob(f".*{DELETED}"):
                shutil.rmtree(left, ignore_errors=True)
            for each in verdicts:
                if not each.kept:
                    delete(folder / each.name)
    return verdicts


def decide(
    found: Sequence[PruneCandidate],
    *,
    keep: int,
    protected: Collection[str],
    launched_ns: int | None,
) -> list[PruneDecision]:
    """Decide about each checkpoint, newest first.

    Args:
        found: all checkpoints of a folder.
        keep: number of the newest ones that can be opened.
        protected: names that are kept.
        launched_ns: when the running job was launched; None when no job runs.
    """
    order = sorted(found, key=lambda each: (each.step, each.published_ns), reverse=True)
    good = [each for each in order if not each.problem]
    verified = next((each.name for each in good if each.verified), "")
    why: dict[str, str] = {}
    for each in order:
        if each.name in protected:
            why[each.name] = "protected"
        elif each.problem:
            why[each.name] = f"damaged, look at it: {each.problem}"
        elif each in good[:keep]:
            why[each.name] = f"one of the newest {keep}"
        elif each.name == verified:
            why[each.name] = "the newest verified one"
        elif launched_ns is not None and 0 < each.published_ns <= launched_ns:
            why[each.name] = "the running job may have been resumed from it"
    _keep_what_is_pointed_to(order, why)
    return [
        PruneDecision(
            each.name,
            each.name in why,
            why.get(each.name, "older"),
            each.nbytes,
        )
        for each in order
    ]


def _keep_what_is_pointed_to(order: Sequence[PruneCandidate], why: dict[str, str]) -> None:
    """Keep physical ones with links that the deletion would not remove."""
    changed = True
    while changed:
        doomed = [each for each in order if each.name not in why]
        leaving = Counter(inode for each in doomed for inode, _ in each.links)
        changed = False
        for each in doomed:
            if not each.virtual and any(names > leaving[inode] for inode, names in each.links):
                why[each.name] = "a virtual checkpoint points to it"
                changed = True


def candidates(folder: Path) -> list[PruneCandidate]:
    """Examine our checkpoints in a folder; links and hidden folders are ignored."""
    found = []
    for each in sorted(folder.iterdir()):
        hidden = each.name.startswith(".") or each.is_symlink()
        if not hidden and each.is_dir() and _is_ours(each):
            found.append(_candidate(each))
    return found


def delete(checkpoint: Path) -> None:
    """Delete a checkpoint, so that a crash in between leaves none that looks complete.

    Raises:
        InputInvalid: it cannot be deleted.
    """
    leaving = checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(6)}{DELETED}")
    try:
        _disown(checkpoint)
        checkpoint.rename(leaving)
        durable.fsync_folder(checkpoint.parent)
        shutil.rmtree(leaving)
    except OSError as error:
        raise InputInvalid(
            f"{checkpoint} could not be deleted ({error.strerror}); make its folder writable and "
            "prune again."
        ) from error


def drop(checkpoint: Path) -> None:
    """Delete what can be deleted of a run's own checkpoint; its next pruning tries the rest again.

    Raises:
        OSError: its folder cannot be written.
    """
    _disown(checkpoint)
    shutil.rmtree(checkpoint, ignore_errors=True)


def _disown(checkpoint: Path) -> None:
    (checkpoint / COMMIT).unlink(missing_ok=True)
    durable.fsync_folder(checkpoint)


def _is_ours(path: Path) -> bool:
    try:
        document = documents.load(manifest_bytes(path))
    except (CheckpointDamaged, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def _candidate(path: Path) -> PruneCandidate:
    step = int(path.name[5:]) if path.name.startswith("step-") and path.name[5:].isdecimal() else -1
    try:
        published_ns = (path / COMMIT).stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return PruneCandidate(name=path.name, step=step, problem=f"no {COMMIT}")
    try:
        checkpoint = open_checkpoint(path)
        verified = record.is_verified(checkpoint)
    except (CheckpointDamaged, InputInvalid) as error:
        return PruneCandidate(
            name=path.name, step=step, published_ns=published_ns, problem=str(error)
        )
    manifest = checkpoint.manifest
    looked = [os.stat(path / name, follow_symlinks=False) for name in manifest.data]
    told = checkpoint.trainer.get("header", {}).get("step")
    if step < 0 and type(told) is int:
        step = told
    return PruneCandidate(
        name=path.name,
        step=step,
        published_ns=published_ns,
        verified=verified,
        virtual=manifest.kind is CheckpointKind.VIRTUAL,
        nbytes=sum(each.size for each in manifest.data.values()),
        links=tuple(((each.st_dev, each.st_ino), each.st_nlink) for each in looked),
    )


@contextmanager
def _launch(folder: Path, *, holds_lock: bool) -> Iterator[int | None]:
    """Yield when the folder's running job was launched; None without one, and none can start.

    A run's folder records when a job was launched, not which checkpoint it was resumed from: that
    is one that existed then.
    """
    run = RunFolder(folder)
    if holds_lock or not run.lock.exists():
        yield None
        return
    descriptor = try_lock(run)
    if descriptor is None:
        claim = run.attempts / f"{highest_attempt(run):04d}"
        yield (claim if claim.exists() else run.lock).stat().st_mtime_ns
        return
    try:
        yield None
    finally:
        os.close(descriptor)
