"""Be another user, for one request or for a connection: a forked child, which has a uid alone."""

import grp
import json
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.process import Answer, ask

STRANGER = 12_345
GROUP = "users"
"""A group of every Debian that the tests lend to the socket."""

KEPT_OUT = 13
"""Exit status of a child that may not open the socket."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@contextmanager
def connecting(
    path: Path, uid: int, groups: Sequence[str] = (GROUP,)
) -> Iterator[Callable[[], socket.socket]]:
    """Give what connects as a user: the kernel tells the other side who called connect().

    Args:
        path: the socket.
        uid: the user; 0: this one.
        groups: of that user; none for a stranger to every one.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            if uid:
                gids = [grp.getgrnam(each).gr_gid for each in groups]
                os.setgroups(gids)
                os.setgid(uid)
                os.setuid(uid)
            ours.close()
            while theirs.recv(1):
                with socket.socket(socket.AF_UNIX) as opened:
                    try:
                        opened.connect(str(path))
                    except OSError:
                        theirs.sendall(b"-")
                        continue
                    socket.send_fds(theirs, [b"+"], [opened.fileno()])
        finally:
            os._exit(1)
    theirs.close()

    def connect() -> socket.socket:
        ours.sendall(b"?")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if not descriptors:
            raise ConnectionRefusedError(f"uid {uid} could not connect to {path}")
        opened = socket.socket(fileno=descriptors[0])
        opened.settimeout(60.0)
        return opened

    try:
        yield connect
    finally:
        ours.close()
        os.waitpid(child, 0)


def as_stranger(path: Path, method: str, target: str, body: Any = None, *groups: int) -> Answer:
    """Send one request from a process of uid 12345 in GROUP (and in further `groups`)."""
    gid = grp.getgrnam(GROUP).gr_gid
    return as_somebody((STRANGER, gid, groups), path, method, target, body)


def as_somebody(
    who: tuple[int, int, Sequence[int]], path: Path, method: str, target: str, body: Any = None
) -> Answer:
    """Send one request from a process of another (uid, gid, further groups).

    Raises:
        PermissionError: it may not connect.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _ask_and_exit(write, (path, method, target, body), who)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == KEPT_OUT:
        raise PermissionError(str(path))
    assert os.waitstatus_to_exitcode(status) == 0, said.decode()
    answer = json.loads(said)
    return Answer(status=answer[0], body=answer[1])


def _ask_and_exit(
    write: int, request: tuple[Path, str, str, Any], who: tuple[int, int, Sequence[int]]
) -> None:
    """In the child: become somebody else, ask, hand the answer over, end."""
    status = 1
    try:
        os.setgroups(list(who[2]))
        os.setgid(who[1])
        os.setuid(who[0])
        answer = ask(*request)
        os.write(write, json.dumps([answer.status, answer.body]).encode())
        status = 0
    except PermissionError:
        status = KEPT_OUT
    except BaseException:
        os.write(write, traceback.format_exc().encode())
    finally:
        # Nothing of the parent's may run here: no fixtures, no handlers.
        os._exit(status)
