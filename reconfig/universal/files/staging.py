"""Writes a folder under a temporary name and renames it when it is complete.

Invariant: after a failure before the rename neither the target nor the staging folder exists; only
a kill leaves the staging folder behind, under a name that no reader opens.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wattmesh import durable
from wattmesh.errors import InputInvalid

Fence = Callable[[], None]
Progress = Callable[[int], None]


def unfenced() -> None:
    """The fence of a writer without rivals."""


def silent(count: int) -> None:
    """Progress that is not reported."""


@contextmanager
def staged(target: Path, fence: Fence = unfenced) -> Iterator[Path]:
    """Yield an empty folder beside `target`, which gets that name at the end of the block.

    Args:
        target: must not exist; its parent must.
        fence: called last before the rename; raises Fenced when a newer attempt exists.

    Raises:
        InputInvalid: the target exists, or cannot be written (disk full, read-only).
    """
    # absolute() and not resolve(): a target that is a symbolic link counts as existing.
    target = target.absolute()
    staging = target.with_name(f".{target.name}.{secrets.token_hex(6)}.staging")
    try:
        if os.path.lexists(target):
            raise InputInvalid(f"{target} exists already; name a folder that does not.")
        staging.mkdir()
        yield staging
        fence()
        durable.publish_folder(staging, target)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise InputInvalid(_sentence(target, error)) from error
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


_ADVICE = (
    ({errno.ENOSPC, errno.EDQUOT, errno.EFBIG}, "make room there, or name a folder elsewhere"),
    ({errno.EROFS, errno.EACCES, errno.EPERM}, "name a folder that you may write"),
    ({errno.ENOENT, errno.ENOTDIR}, "create its parent folder first"),
    ({errno.EEXIST, errno.ENOTEMPTY}, "it appeared meanwhile; name another"),
)


def _sentence(target: Path, error: OSError) -> str:
    """Say what went wrong, and what to do next."""
    advice = next((text for codes, text in _ADVICE if error.errno in codes), "look at the disk")
    reason = error.strerror or str(error)
    return f"{target} was not written ({reason}); {advice}."
