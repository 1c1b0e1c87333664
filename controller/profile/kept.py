"""What a profile or a validation keeps in its folder, so that a later call goes on there.

Invariant: a folder that holds anything else is refused, and so is what another job file began;
nothing is measured while the job of an earlier call still runs there.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from wattmesh.errors import InputInvalid

T = TypeVar("T")

LEAVING_LIMIT_S = 120.0
"""A rank notices within seconds that its launcher was killed, and ends."""

POLL_S = 0.2


def read_kept(
    path: Path,
    what: str,
    digest: str,
    kind: type[T],
    check: Callable[[Any, T], None] = lambda _data, _found: None,
) -> T | None:
    """Read the file of an earlier call; None where its folder is new or empty.

    Args:
        path: of the file, in its folder.
        what: "profile" or "validation", as people read it.
        digest: of the present job file.
        kind: the dataclass of what was kept.
        check: called with the file's JSON and what was read of it; ValueError: it cannot be used.

    Raises:
        InputInvalid: the folder holds something else, or what another job file began.
    """
    folder = path.parent
    if folder.is_symlink() and not folder.exists():
        raise InputInvalid(f"{folder} is a link to nothing; name a folder")
    if folder.exists() and not folder.is_dir():
        raise InputInvalid(f"{folder} is a file and no folder; name a new folder")
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputInvalid(
                f"{folder} is not empty, and holds no {what} to go on with; name a new folder"
            )
        return None
    try:
        text = path.read_bytes()
        found = TypeAdapter(kind).validate_json(text, strict=True)
        data = json.loads(text)
        check(data, found)
    except (OSError, ValueError) as error:
        why = _first_mistake(error) if isinstance(error, ValidationError) else str(error)
        raise InputInvalid(f"{path} cannot be read ({why}); name a new folder") from error
    if data["digest"] != digest:
        raise InputInvalid(
            f"{folder} holds the {what} of another job file, or of this one before it was edited; "
            "name a new folder, or take the old file back to go on"
        )
    return found


def _first_mistake(error: ValidationError) -> str:
    """Say what is wrong first, and where."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(each) for each in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


def await_former(
    folder: Path, tell: Callable[[str], None], limit_s: float = LEAVING_LIMIT_S
) -> None:
    """Wait until no job runs that an earlier call, which was killed, has started in its folder.

    It would train on beside the new one, draw power that nobody's point has, and write into files
    that are read.

    Raises:
        InputInvalid: one still runs after `limit_s`.
        OSError: the folder is another user's.
    """
    ends_s, told = time.monotonic() + limit_s, False
    for lock in sorted(folder.glob("*/run/attempt.lock")):
        while _locked(lock):
            if not told:
                tell(f"waiting for the job of an earlier call to end ({lock.parents[1]})")
            told = True
            if time.monotonic() > ends_s:
                raise InputInvalid(
                    f"the job that an earlier call started in {lock.parents[1]} still runs: end "
                    "its processes, or name another folder with --folder"
                )
            time.sleep(POLL_S)


def _locked(lock: Path) -> bool:
    """Say whether a rank of a launch holds its lock (`reconfig/launch/attempt.py`)."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
