"""What a profile or a validation keeps in its folder, so that a later call goes on there.

Invariant: a folder that holds anything else is refused, and so is what another job file began.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from wattmesh.errors import InputInvalid

T = TypeVar("T")


def read_kept(path: Path, what: str, digest: str, decoded: Callable[[Any], T]) -> T | None:
    """Read the file of an earlier call; None where its folder is new or empty.

    Args:
        path: of the file, in its folder.
        what: "profile" or "validation", as people read it.
        digest: of the present job file.
        decoded: makes what was kept of the file's JSON; ValueError, TypeError or KeyError: damaged.

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
        data = json.loads(path.read_bytes())
        found, began = decoded(data), data["digest"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputInvalid(f"{path} cannot be read ({error}); name a new folder") from error
    if began != digest:
        raise InputInvalid(
            f"{folder} holds the {what} of another job file, or of this one before it was edited; "
            "name a new folder, or take the old file back to go on"
        )
    return found
