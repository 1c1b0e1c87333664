"""What a file with a secret must be: readable by its owner only, and hard to guess.

A secret may also be a credential of the service manager (`credential:NAME` in the settings). Only
the service's own process can read it, so it is not checked before that process reads it.
"""

import os
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from wattmesh.controller.settings.mistakes import Mistake
from wattmesh.controller.settings.paths_and_times import credentials_folder
from wattmesh.errors import FixInput
from wattmesh.named_file import NOT_REGULAR, SECRET_BYTES, read_named

SHORTEST_TOKEN = 24

of_others: ContextVar[bool] = ContextVar("of_others", default=False)
"""Whether the settings are read by a person for whom the service's secrets are rightly closed."""


def is_credential(path: Path) -> bool:
    """Say whether the settings named a credential."""
    return path.parent == credentials_folder()


def closed(path: Path) -> bool:
    """Say whether a person reads the settings, and may not read this file of the service's."""
    if not of_others.get():
        return False
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def read_secret(key: str, path: Path) -> str:
    """Read the secret that a key of the settings names.

    Raises:
        FixInput: the file cannot be read, or holds no secret.
    """
    try:
        secret = read_named(path, SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        if is_credential(path):
            raise no_credential(key, path, why) from error
        raise FixInput(f"{key}: {path} cannot be read ({why})") from error
    if not secret:
        raise FixInput(f"{key}: {path} is empty; put the secret into it")
    return secret


def no_credential(key: str, path: Path, why: str | None) -> FixInput:
    """Say what to do about a credential that the service does not have."""
    return FixInput(
        f"{key}: the service has no credential {path.name} ({why}): put it into "
        f"/etc/credstore/{path.name} (mode 0600, root's), have LoadCredential={path.name} "
        "in the unit (systemd 252 or later), and restart the service"
    )


def secret_mistakes(key: str, path: Path) -> Iterator[Mistake]:
    """Check that only its owner can read a secret's file; systemd guards a credential."""
    if is_credential(path):
        return
    try:
        found = path.stat()
    except OSError as error:
        if closed(path):
            return
        yield key, f"{path} cannot be read ({error.strerror})"
        return
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        yield key, f"{path} cannot be read ({NOT_REGULAR})"
    elif found.st_size > SECRET_BYTES:
        yield key, f"{path} is larger than the {SECRET_BYTES} bytes that a secret may have"
    elif mode & 0o077:
        yield key, f"{path} is open to others (mode {mode:04o}); run `chmod 600 {path}`"


def token_mistakes(key: str, path: Path) -> Iterator[Mistake]:
    """Check that a token is long enough not to be guessed."""
    try:
        length = len(read_named(path, SECRET_BYTES).decode().strip())
    except (OSError, UnicodeDecodeError):
        return  # named by `secret_mistakes` already
    if length < SHORTEST_TOKEN:
        yield (
            key,
            f"{path} holds {length} letters, fewer than {SHORTEST_TOKEN}; make one with "
            "`wattmesh nodes token make NODE` (a shared one: `openssl rand -hex 32`)",
        )
