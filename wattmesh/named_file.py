"""The one way we read a file whole that settings, or a command line, name.

Invariant: reading ends, and takes no more memory than was allowed, whatever lies at the name. Links
are followed (configuration is often put in place by them); only a regular file is read, opened so
that no pipe or device can hold us, and sized before its first byte is read.
"""

import errno
import os
import stat
from pathlib import Path

SETTINGS_BYTES = 4 << 20
"""No settings file, or list of jobs or declarations, has more."""

SECRET_BYTES = 1 << 16
"""No password, token, certificate chain or key has more."""

NOT_REGULAR = "it is no regular file; put one there, or a link to one"


def read_named(path: Path, most_bytes: int) -> bytes:
    """Read a file whole.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger; `strerror` says which.
    """
    # Without O_NONBLOCK, opening a pipe would wait for ever.
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    found = os.fstat(opened)
    if not stat.S_ISREG(found.st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    with os.fdopen(opened, "rb") as file:
        # It may grow meanwhile.
        data = b"" if found.st_size > most_bytes else file.read(most_bytes + 1)
    if max(found.st_size, len(data)) > most_bytes:
        raise OSError(
            errno.EFBIG,
            f"it is larger than the {most_bytes} bytes that such a file may have",
            str(path),
        )
    return data
