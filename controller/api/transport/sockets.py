"""Bind the Unix socket with the right mode and group from the start, and for one daemon only.

Invariant: the holder of the lock file beside the socket is the only daemon of this path (the kernel
releases the lock when the process dies, however it dies), so a socket found there is stale and may
be replaced.
"""

import grp
import logging
import os
import socket
from pathlib import Path

from wattmesh import durable
from wattmesh.errors import FixInput
from wattmesh.telemetry.actuator.settings import OPERATORS

log = logging.getLogger(__name__)

BACKLOG = 256
MODE = 0o660


class AddressTaken(FixInput):
    """Another daemon serves on this socket."""


class Listening:
    """A bound, listening socket and the lock that makes it ours."""

    def __init__(self, path: Path, listener: socket.socket, lock: durable.Lock) -> None:
        """Take over what `listen` opened."""
        self.path = path
        self.socket = listener
        self._lock = lock
        self._inode = path.stat().st_ino

    def close(self) -> None:
        """Stop listening, unlink the socket if it is still ours, release the lock."""
        self.socket.close()
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            pass
        self._lock.close()


def listen(path: Path, group: str, key: str = "api.socket") -> Listening:
    """Bind `path` with mode 0660 for the daemon's user and `group` (where that group exists).

    Args:
        path: of the socket.
        group: whose members may connect.
        key: the setting that names the path, for messages.

    Raises:
        AddressTaken: another daemon holds the path.
        FixInput: the folder is missing or not writable, or something else stands at `path`.
    """
    lock, number = _lock(path, key), group_id(group)
    if number is None and group not in ("", OPERATORS):
        log.warning(
            "this machine has no group %s, so only this service's own group can reach %s: make it "
            "(integrations/systemd/wattmesh.conf), and start the service again",
            group,
            path,
        )
    try:
        return Listening(path, _bind(path, number, key), lock)
    except BaseException:
        lock.close()
        raise


def group_id(name: str) -> int | None:
    """Give the gid of a group; None when this machine has no group of that name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def group_name(gid: int | None) -> str:
    """Name a group for a sentence."""
    try:
        return "" if gid is None else grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _lock(path: Path, key: str) -> durable.Lock:
    """Take the lock beside the socket, or raise an error that names its holder."""
    try:
        return durable.hold(path)
    except durable.Held as error:
        raise AddressTaken(
            f"another daemon (pid {error.holder}) serves {path}; stop it first, or give this one "
            f"its own {key}"
        ) from error
    except OSError as error:
        why = durable.cannot_write(path.parent)
        said = f"the socket's folder {why}" if why else f"{path}.lock: {error.strerror}"
        raise FixInput(f"{said}, or name another path in {key}") from error


def _bind(path: Path, group: int | None, key: str) -> socket.socket:
    """Bind while the lock is held; a socket that a dead daemon left is replaced."""
    if path.is_socket():
        path.unlink()
    elif path.exists() or path.is_symlink():
        raise FixInput(f"{path} exists and is no socket; move it away, or change {key}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # The socket must not be open to the wrong group, not even until the chmod. (The umask is
    # the whole process's: `listen` is called before any thread starts.)
    before = os.umask(0o177)
    try:
        listener.bind(bytes(path))
        _open_to_group(path, group)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise FixInput(f"cannot listen on {path} ({error.strerror}); change {key}") from error
    finally:
        os.umask(before)
    return listener


def _open_to_group(path: Path, group: int | None) -> None:
    """Open the socket to a group (default: the daemon's own); without the right to, to nobody."""
    try:
        if group is not None:
            os.chown(path, -1, group)
    except PermissionError:
        log.warning(
            "may not give %s to the group %s, so only this user can reach it: make this user a "
            "member of that group (SupplementaryGroups= in the service's unit), and start it again",
            path,
            group_name(group),
        )
        return
    path.chmod(MODE)
