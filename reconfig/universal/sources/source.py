"""What every kind of source is turned into before anything is made from it.

Invariant: `fingerprint` was taken before the first byte was read, so whoever finds it unchanged
afterwards has read one state of the source.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.index import Index


@dataclass(frozen=True, slots=True)
class Stamp:
    """What shows that a file is still the one that was read."""

    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint of some kind, as tensors in logical coordinates.

    Attributes:
        kind: "dcp", "deepspeed" or "universal".
        folder: what `files` are relative to.
        files: every file that belongs to it; those of the index are among them.
        index: proven; coordinates are logical.
        values: what is not tensors, for trainer.json: {"header", "values", "extra"}.
        fingerprint: of each of `files`.
        run, attempt: who wrote it, where it says so.
        logical_digest: of the state as it was in memory, where it says so.
        described: what else the manifest shall say of the source (JSON).
    """

    kind: str
    folder: Path
    files: tuple[str, ...]
    index: Index
    values: Mapping[str, Any]
    fingerprint: Mapping[str, Stamp]
    run: str = ""
    attempt: int = 0
    logical_digest: str = ""
    described: Mapping[str, Any] = field(default_factory=dict)

    def check_unchanged(self) -> None:
        """Compare every file with its fingerprint.

        Raises:
            InputInvalid: a file was changed, replaced or deleted since it was read.
        """
        for name, before in self.fingerprint.items():
            if stamp(self.folder, name) != before:
                raise InputInvalid(
                    f"{self.folder}: {name} was changed while it was read; convert again when "
                    "nobody writes to it."
                )


def stamp(folder: Path, name: str) -> Stamp:
    """Look at one file.

    Raises:
        InputInvalid: it is gone or may not be read.
    """
    try:
        found = os.stat(folder / name)
    except OSError as error:
        raise InputInvalid(f"{folder}: {name} cannot be read ({error.strerror}).") from error
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino)


def fingerprint_of(folder: Path, names: Iterable[str]) -> dict[str, Stamp]:
    """Look at every file of a source.

    Raises:
        InputInvalid: see `stamp`.
    """
    return {name: stamp(folder, name) for name in names}
