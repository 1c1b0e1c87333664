"""Reads the process at the other end of a Unix socket from the kernel: unix(7), SO_PEERCRED.

Invariant: a uid or gid is the kernel's unsigned number, up to 2^32 - 2.
"""

import socket
import struct
from dataclasses import dataclass

SO_PEERGROUPS = 59
"""socket(7), Linux 4.13; Python names no constant for it."""

GROUPS_BYTES = 1024
"""The largest buffer that Python's getsockopt takes: 256 groups."""

UNKNOWN = -1
"""An unknown uid or gid, as of a TCP connection; the kernel returns 2^32 - 1."""

_UCRED = struct.Struct("iII")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCredentials:
    """The process that connected, at the time it did."""

    pid: int
    uid: int
    gid: int


def credentials(connection: socket.socket) -> PeerCredentials:
    """Read who connected."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(data)
    return PeerCredentials(pid=pid, uid=_known(uid), gid=_known(gid))


def supplementary_groups(connection: socket.socket) -> tuple[int, ...]:
    """List the supplementary groups that the process connected with.

    Raises:
        OSError: the kernel is too old, or there are more groups than fit.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES)
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _known(number: int) -> int:
    return UNKNOWN if number == 2**32 - 1 else number
