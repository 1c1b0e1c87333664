"""The one way we write files that must survive a power cut, and hold what one process may have.

Invariant: a reader sees the old content or the new, never a part of either: write to a
temporary name in the same folder, fsync the file, rename, fsync the folder.
"""

import fcntl
import os
import secrets
from pathlib import Path
from typing import Self


class Held(Exception):
    """Another process has the lock. `holder`: its pid as it wrote it, or "unknown"."""

    def __init__(self, holder: str) -> None:
        """Keep who has it."""
        self.holder = holder
        super().__init__(f"held by process {holder}")


class Lock:
    """A lock file that this process has. The kernel lets go of it when the process ends, however.

    Closing it again does nothing: by then its number may be another file's.
    """

    def __init__(self, descriptor: int) -> None:
        """Take over an open, locked descriptor."""
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        """Keep it until the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go."""
        self.close()

    def fileno(self) -> int:
        """Give the descriptor; -1 once it is closed."""
        return self._descriptor

    def close(self) -> None:
        """Let go."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def hold(path: Path, *, shared: bool = False) -> Lock:
    """Take the lock file beside `path` for this process alone.

    `shared`: together with others who take it so, and with nobody who does not.

    Raises:
        Held: another process has it. OSError: the file cannot be opened.
    """
    name = path.with_name(f"{path.name}.lock")
    lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise Held(holder) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return Lock(lock)


def cannot_write(folder: Path) -> str:
    """Say why nothing can be written in a folder, and what to do; "" where something can."""
    try:
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    except OSError as error:
        return f"{folder} cannot be used ({error.strerror}): make it, for the service's user"
    if read_only:
        return (
            f"{folder} is read-only for this service: name it in ReadWritePaths= of the service's "
            "unit (`systemctl edit`)"
        )
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return f"{folder} may not be written by uid {os.geteuid()}: give it to the service's user"
    return ""


def fsync_folder(folder: Path) -> None:
    """Make the names in `folder` durable (POSIX: a rename is only as durable as its parent)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of one finished file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Replace the content of `path` by `data`, durably and in one step.

    Without `sync` it is still one step, but a power cut may lose it: for words of a process that
    is about to end, which must not wait for a disk.

    Raises:
        OSError: the disk is full or the folder is not writable; `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        fsync_folder(path.parent)


def write_new(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write a file into a staging folder: its content is durable, its name once the folder is.

    Without `sync` the caller makes the content durable later (`fsync_file`), before the name.

    Raises:
        OSError: the disk is full, or `path` exists already.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def write_text(path: Path, text: str, *, mode: int = 0o644, sync: bool = True) -> None:
    """Replace the content of `path` by `text` (UTF-8), as `write_bytes` does."""
    write_bytes(path, text.encode(), mode=mode, sync=sync)


def publish_folder(staging: Path, final: Path) -> None:
    """Give a finished staging folder its final name, durably.

    The files inside must have been fsynced by whoever wrote them.

    Raises:
        FileExistsError: `final` exists already and is not empty; nothing was changed.
    """
    fsync_folder(staging)
    try:
        staging.rename(final)
    except OSError as error:
        if final.exists():
            raise FileExistsError(f"{final} exists already; it was not replaced") from error
        raise
    fsync_folder(final.parent)
