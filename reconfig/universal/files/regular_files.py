"""Opens only regular files below one folder, and checks their size before reading.

A path is opened part by part from the folder's descriptor without following links, so a reader
stays in the folder even if a part is replaced meanwhile. Anything but a regular file (a pipe,
device, link or folder) is refused before it is read.

Invariant: no call blocks on another process, and no more is read than was requested.
"""

import errno
import os
import stat
from pathlib import Path, PurePosixPath

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance

MAX_PATH = 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for ever.
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class RegularFiles:
    """A folder, open from its first use on."""

    def __init__(self, folder: Path) -> None:
        """Open nothing yet. The folder itself may be a symbolic link, because its user named it."""
        self.folder = folder
        self._descriptor = -1

    def __enter__(self) -> "RegularFiles":
        """Use as a context: the descriptor is closed at its end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the descriptor."""
        self.close()

    def close(self) -> None:
        """Close the descriptor; the next use opens the folder anew."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def look(self, name: str) -> os.stat_result:
        """Return a file's status without opening it.

        Raises:
            InputInvalid: the path could lead out of the folder.
            CheckpointDamaged: it is not a regular file. OSError: it does not exist.
        """
        parent, last, owned = self._walk(name)
        try:
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
        finally:
            if owned:
                os.close(parent)
        self._check_regular(name, found)
        return found

    def open(self, name: str) -> tuple[int, os.stat_result]:
        """Open a file; return its descriptor, which the caller closes, and its status.

        Raises:
            InputInvalid: the path could lead out of the folder.
            CheckpointDamaged: it is not a regular file. OSError: it cannot be opened.
        """
        parent, last, owned = self._walk(name)
        try:
            descriptor = os.open(last, _FILE, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise self._irregular(name, link=error.errno == errno.ELOOP) from error
            raise
        finally:
            if owned:
                os.close(parent)
        found = os.fstat(descriptor)
        try:
            self._check_regular(name, found)
        except CheckpointDamaged:
            os.close(descriptor)
            raise
        return descriptor, found

    def read(
        self, name: str, most: int, allowance: Allowance, expected: int | None = None
    ) -> bytes:
        """Read a whole small file, after checking its size.

        Args:
            name: relative path.
            most: its largest legal size in bytes.
            allowance: of the checkpoint; it is charged for the bytes.
            expected: its exact size in bytes, where known.

        Raises:
            InputInvalid: the path could lead out of the folder, or the allowance is used up.
            CheckpointDamaged: it is not a regular file, or of another size.
            OSError: it cannot be read.
        """
        where = f"{self.folder.name}/{name}"
        descriptor, found = self.open(name)
        try:
            if found.st_size > most or expected not in (None, found.st_size):
                allowed = f"at most {most}" if expected is None else f"the {expected} written"
                raise CheckpointDamaged(
                    f"{where} has {found.st_size} bytes, not {allowed}; somebody changed it, "
                    "use another checkpoint."
                )
            allowance.read(found.st_size, where)
            parts: list[bytes] = []
            at = 0
            while at < found.st_size:
                part = os.pread(descriptor, found.st_size - at, at)
                if not part:
                    raise CheckpointDamaged(f"{where} shrank while it was read; try again.")
                parts.append(part)
                at += len(part)
        finally:
            os.close(descriptor)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _walk(self, name: str) -> tuple[int, str, bool]:
        """Return the parent folder's descriptor, the name, and whether to close the former."""
        check_relative(name)
        if self._descriptor < 0:
            self._descriptor = os.open(self.folder, _FOLDER)
        *parents, last = PurePosixPath(name).parts
        at, owned = self._descriptor, False
        for part in parents:
            try:
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise InputInvalid(
                        f"{part!r} in the path {name!r} is a symbolic link or no folder, which "
                        "leads out of the checkpoint."
                    ) from error
                raise
            finally:
                if owned:
                    os.close(at)
            at, owned = below, True
        return at, last, owned

    def _check_regular(self, name: str, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._irregular(name, link=stat.S_ISLNK(found.st_mode))

    def _irregular(self, name: str, *, link: bool) -> CheckpointDamaged:
        what = "a symbolic link, which is not followed" if link else "a pipe, device or folder"
        return CheckpointDamaged(
            f"{self.folder.name}/{name} is no plain file but {what}; put the file itself there."
        )


def check_relative(name: str) -> None:
    """Refuse a path that could lead out of its folder, or is not in normal form.

    Raises:
        InputInvalid: it is absolute, contains "..", is not normalized, is longer than MAX_PATH
            characters, or contains unprintable characters.
    """
    path = PurePosixPath(name[: MAX_PATH + 1])
    if (
        path.is_absolute()
        or ".." in path.parts
        or str(path) != name
        or name in ("", ".")
        or len(name) > MAX_PATH
        or not name.isprintable()
    ):
        raise InputInvalid(
            f"the index names the file {name!r:.80}; only plain relative paths below the "
            "checkpoint folder are allowed."
        )
