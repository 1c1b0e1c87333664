"""Letting old checkpoints go: `decide` says which and why (pure), `prune` deletes them.

Never deleted: the newest ones, the newest verified one, what is protected, what a running job may
have been resumed from, what a virtual checkpoint points to, and whatever is damaged: that is for a
person to look at.

Invariant: COMMIT goes first, durably, then the name; so what a crash leaves is no checkpoint.
"""

import fcntl
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
from wattmesh.reconfig.launch.attempt import highest_attempt
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.universal import record
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.folder import (
    COMMIT,
    FORMAT,
    Kind,
    manifest_bytes,
    open_checkpoint,
)

Inode = tuple[int, int]

DELETED = ".deleted"
"""End of the hidden name under which a checkpoint goes away; a crash may leave one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A checkpoint folder, as far as pruning cares.

    Attributes:
        step: of training, by its name, else by its trainer.json; -1 where neither says.
        published_ns: when COMMIT was written; 0 when it is gone.
        problem: why it cannot be opened; "" for a good one.
        links: physical: number of names of each of its data files, by inode. virtual: of the
            files it points to.
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
class Verdict:
    """What becomes of a checkpoint. `nbytes`: of its data files."""

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
) -> list[Verdict]:
    """Delete checkpoints beyond the newest `keep` of a folder; give all verdicts, newest first.

    Args:
        folder: of checkpoints; a run's folder or any other.
        keep: at least 1.
        protected: names that stay.
        dry_run: only say what would be done.
        holds_lock: the caller is the run itself; it protects what it resumed from by name.

    Raises:
        InputInvalid: the folder cannot be read or a checkpoint not deleted.
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
    found: Sequence[Candidate], *, keep: int, protected: Collection[str], launched_ns: int | None
) -> list[Verdict]:
    """Say what becomes of each checkpoint, newest first.

    Args:
        found: all of a folder.
        keep: so many of the newest that can be opened.
        protected: names that stay.
        launched_ns: when the running job was launched; None when none runs.
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
        Verdict(
            each.name,
            each.name in why,
            why.get(each.name, "older"),
            each.nbytes,
        )
        for each in order
    ]


def _keep_what_is_pointed_to(order: Sequence[Candidate], why: dict[str, str]) -> None:
    """Keep physical ones whose files have names beyond those that go away with them."""
    changed = True
    while changed:
        doomed = [each for each in order if each.name not in why]
        leaving = Counter(inode for each in doomed for inode, _ in each.links)
        changed = False
        for each in doomed:
            if not each.virtual and any(names > leaving[inode] for inode, names in each.links):
                why[each.name] = "a virtual checkpoint points to it"
                changed = True


def candidates(folder: Path) -> list[Candidate]:
    """Look at every checkpoint of ours in a folder; links and hidden folders are left alone."""
    found = []
    for each in sorted(folder.iterdir()):
        hidden = each.name.startswith(".") or each.is_symlink()
        if not hidden and each.is_dir() and _is_ours(each):
            found.append(_candidate(each))
    return found


def delete(checkpoint: Path) -> None:
    """Delete a checkpoint, so that a crash on the way leaves none that looks whole.

    Raises:
        InputInvalid: it cannot be deleted.
    """
    leaving = checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(6)}{DELETED}")
    try:
        (checkpoint / COMMIT).unlink(missing_ok=True)
        durable.fsync_folder(checkpoint)
        checkpoint.rename(leaving)
        durable.fsync_folder(checkpoint.parent)
        shutil.rmtree(leaving)
    except OSError as error:
        raise InputInvalid(
            f"{checkpoint} could not be deleted ({error.strerror}); make its folder writable and "
            "prune again."
        ) from error


def _is_ours(path: Path) -> bool:
    try:
        document = documents.load(manifest_bytes(path))
    except (CheckpointDamaged, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def _candidate(path: Path) -> Candidate:
    step = int(path.name[5:]) if path.name.startswith("step-") and path.name[5:].isdecimal() else -1
    try:
        published_ns = (path / COMMIT).stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return Candidate(name=path.name, step=step, problem=f"no {COMMIT}")
    try:
        checkpoint = open_checkpoint(path)
        verified = record.is_verified(checkpoint)
    except (CheckpointDamaged, InputInvalid) as error:
        return Candidate(name=path.name, step=step, published_ns=published_ns, problem=str(error))
    manifest = checkpoint.manifest
    looked = [os.stat(path / name, follow_symlinks=False) for name in manifest.data]
    told = checkpoint.trainer.get("header", {}).get("step")
    if step < 0 and type(told) is int:
        step = told
    return Candidate(
        name=path.name,
        step=step,
        published_ns=published_ns,
        verified=verified,
        virtual=manifest.kind is Kind.VIRTUAL,
        nbytes=sum(each.size for each in manifest.data.values()),
        links=tuple(((each.st_dev, each.st_ino), each.st_nlink) for each in looked),
    )


@contextmanager
def _launch(folder: Path, *, holds_lock: bool) -> Iterator[int | None]:
    """When the job that runs in a folder was launched; None, and none can start, when none does.

    A run's folder does not say what it was resumed from, only when: it must have been a checkpoint
    that was there before.
    """
    run = RunFolder(folder)
    # A POSIX lock is lost when its process closes any descriptor of the file: its holder must not
    # come here.
    if holds_lock or not run.lock.exists():
        yield None
        return
    descriptor = os.open(run.lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            launched_ns = None
        except OSError:
            claim = run.attempts / f"{highest_attempt(run):04d}"
            launched_ns = (claim if claim.exists() else run.lock).stat().st_mtime_ns
        yield launched_ns
    finally:
        os.close(descriptor)
