"""Be another user for one request: a forked child, because only a whole process has one uid."""

import grp
import json
import os
import traceback
from collections.abc import Sequence
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
