"""The identity of a launch: the run it continues, and the attempt number that fences older ones.

Invariant: at most one process holds a run folder's lock. Attempt numbers only rise; each is claimed
by creating a file that must not exist yet.
"""

import fcntl
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wattmesh import durable
from wattmesh.errors import Refused
from wattmesh.reconfig.launch.folder import RunFolder, read_json, write_json
from wattmesh.reconfig.ranges import NAME, as_name

log = logging.getLogger(__name__)

LOCK_PATIENCE_S = 3.0
"""How long to wait for the lock: a launch that was just killed may take a moment to end."""

# A POSIX lock vanishes when its process closes any descriptor of the file, so a second claim in
# the same process must not even open it.
_held: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchIdentity:
    """One launch of one run.

    Attributes:
        supersedes: incarnation of the last launch that a daemon accepted, else of the launch before
            this one; it is dead, because we hold its lock. None for the first launch.
    """

    run: str
    name: str
    incarnation: str
    attempt: int
    supersedes: str | None


class AttemptLock:
    """The lock on a run folder and the attempt number taken under it; held until `close`."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        """Take the lock and the next attempt number.

        Raises:
            Refused: another live launch holds the folder; the message names it.
            OSError: the folder cannot be read or written.
        """
        folder.attempts.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = _take_lock(folder)
        if (known_as := as_name(name)) != name:
            log.warning(
                "attach: the name %r is not %s; the daemon knows the run as %s",
                name,
                NAME.what,
                known_as,
            )
            name = known_as
        try:
            run = _run_id(folder, name)
        except OSError:
            self.close()
            raise
        before = highest_attempt(folder)
        let_in = read_json(folder.registered_file) or _holder(folder, before)
        supersedes = let_in.get("incarnation") if before else None
        self.identity = LaunchIdentity(
            run=run, name=name, incarnation=str(uuid.uuid4()), attempt=0, supersedes=supersedes
        )
        self.raise_above(0)

    def raise_above(self, floor: int, announce: Callable[[int], None] | None = None) -> int:
        """Take an attempt number above `floor` and above every one known here.

        Args:
            floor: the highest number that must not be taken.
            announce: called with each number before it is claimed, so that a rank which compares
                the folder with the announced number never takes our own claim for another's.
        """
        number = max(floor, highest_attempt(self._folder))
        while True:
            number += 1
            if announce is not None:
                announce(number)
            if self._create(number):
                break
        identity = self.identity
        self.identity = LaunchIdentity(
            run=identity.run,
            name=identity.name,
            incarnation=identity.incarnation,
            attempt=number,
            supersedes=identity.supersedes,
        )
        return number

    def accepted(self) -> None:
        """Record that the daemon accepted this launch; the next one supersedes it."""
        write_json(self._folder.registered_file, {"incarnation": self.identity.incarnation})

    def close(self) -> None:
        """Release the lock. Safe to repeat."""
        if self._lock >= 0:
            os.close(self._lock)
            _held.discard(str(self._folder.path.resolve()))
            self._lock = -1

    def _create(self, number: int) -> bool:
        """Claim `number` durably; False if another launch has claimed it."""
        path = self._folder.attempts / f"{number:04d}"
        note = {
            "incarnation": self.identity.incarnation,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "at": datetime.now(UTC).isoformat(),
        }
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(note, file)
            file.flush()
            os.fsync(file.fileno())
        durable.fsync_folder(self._folder.attempts)
        return True


def highest_attempt(folder: RunFolder) -> int:
    """Return the highest attempt number claimed in this folder; 0 when there is none."""
    if not folder.attempts.is_dir():
        return 0
    return max(
        (int(each.name) for each in folder.attempts.iterdir() if each.name.isdigit()), default=0
    )


def is_live(folder: RunFolder) -> bool:
    """Return whether a launch, of this process or another, holds this folder's lock now."""
    try:
        descriptor = try_lock(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def try_lock(folder: RunFolder, *, flags: int = 0) -> int | None:
    """Take a folder's lock for as long as the descriptor is open; None while a launch has it.

    Raises:
        OSError: the file cannot be opened (with `flags`).
    """
    if str(folder.path.resolve()) in _held:
        return None
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _holder(folder: RunFolder, attempt: int) -> dict[str, Any]:
    """Read what an attempt wrote about itself; {} when nothing is known."""
    return read_json(folder.attempts / f"{attempt:04d}") or {}


def _run_id(folder: RunFolder, name: str) -> str:
    """Return the run's UUID, which its first launch makes.

    A file that is damaged is written anew, for the run that the checkpoints are of.

    Raises:
        OSError: it is there and cannot be read, so the run may not be given another one.
    """
    known, damaged = read_json(folder.run_file), False
    if known is not None and isinstance(known.get("run"), str):
        return str(known["run"])
    with suppress(FileNotFoundError):
        folder.run_file.read_bytes()
        damaged = True
    run = (_run_of_checkpoints(folder) if damaged else "") or str(uuid.uuid4())
    if damaged:
        log.warning("%s is damaged, and is written anew for run %s", folder.run_file, run)
    write_json(folder.run_file, {"run": run, "name": name, "at": datetime.now(UTC).isoformat()})
    return run


def _run_of_checkpoints(folder: RunFolder) -> str:
    """Return the run that the newest checkpoint which says so is of; "" if none does."""
    for path in folder.checkpoints():
        header = (read_json(path / "trainer.json") or {}).get("header")
        run = header.get("run") if isinstance(header, dict) else None
        if isinstance(run, str) and run:
            return run
    return ""


def _take_lock(folder: RunFolder) -> int:
    """Lock the folder; waits up to `LOCK_PATIENCE_S` for a launch that is ending.

    Raises:
        Refused: another live launch, or this process itself, holds the lock.
    """
    key = str(folder.path.resolve())
    if key in _held:
        raise Refused(f"this process already trains in {folder.path}; attach to a run only once.")
    until = time.monotonic() + LOCK_PATIENCE_S
    while (descriptor := try_lock(folder, flags=os.O_CREAT)) is None:
        if time.monotonic() >= until:
            attempt = highest_attempt(folder)
            holder = _holder(folder, attempt)
            raise Refused(
                f"the run in {folder.path} is live already: attempt {attempt} on host "
                f"{holder.get('host', 'unknown')}, pid {holder.get('pid', 'unknown')} holds it. "
                "Stop that one first, or give this run another checkpoint folder."
            )
        time.sleep(0.05)
    _held.add(key)
    return descriptor
