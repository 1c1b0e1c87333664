"""What a file with a secret must be: only its owner reads it, nobody guesses what it holds."""

import stat
from collections.abc import Iterator
from pathlib import Path

from wattmesh.controller.settings.words import Mistake

SHORTEST_TOKEN = 24


def secret_mistakes(key: str, path: Path) -> Iterator[Mistake]:
    """A secret's file must be readable by its owner only."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        yield key, f"{path} cannot be read ({error.strerror})"
        return
    if mode & 0o077:
        yield key, f"{path} is open to others (mode {mode:04o}); run `chmod 600 {path}`"


def token_mistakes(key: str, path: Path) -> Iterator[Mistake]:
    """A token must be long enough that nobody guesses it."""
    try:
        length = len(path.read_text().strip())
    except (OSError, UnicodeDecodeError):
        return  # named by `secret_mistakes` already
    if length < SHORTEST_TOKEN:
        yield (
            key,
            f"{path} holds {length} letters, fewer than {SHORTEST_TOKEN}; make one with "
            "`openssl rand -hex 32`",
        )
