"""A checkpoint folder while it is made: whole under its name afterwards, or never there.

Invariant: whatever fails between the first byte and the rename, the target does not exist and the
staging folder is gone; only a kill leaves the latter behind, under a name that no reader opens.
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
    """The fence of who has no rival."""


def silent(count: int) -> None:
    """Progress that nobody watches."""


@contextmanager
def staged(target: Path, fence: Fence = unfenced) -> Iterator[Path]:
    """Give an empty folder beside `target` that takes its name at the end of the block.

    Args:
        target: must not exist; its parent must.
        fence: called last before the rename; raises Fenced when a newer attempt exists.

    Raises:
        InputInvalid: the target exists, or cannot be written (disk full, read-only).
    """
    # absolute() and not resolve(): a target that is itself a link must be seen as existing.
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
    ({errno.ENOENT, errno.ENOTDIR}, "make the folder that it shall lie in first"),
    ({errno.EEXIST, errno.ENOTEMPTY}, "it appeared meanwhile; name another"),
)


def _sentence(target: Path, error: OSError) -> str:
    """What went wrong, and what to do next."""
    advice = next((text for codes, text in _ADVICE if error.errno in codes), "look at the disk")
    reason = error.strerror or str(error)
    return f"{target} was not written ({reason}); {advice}."
