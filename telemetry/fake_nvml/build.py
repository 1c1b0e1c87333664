"""Compile the fake NVML library, once per version of its source and per user.

Invariant: what lies in the cache is whole: a build happens in a folder of its own, which is renamed
into place; of two builders at once one wins and both use its result.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattmesh.errors import InputInvalid

LIBRARY = "libnvidia-ml.so.1"
CONTROL = "libfake-nvml-control.so"

_SOURCE = Path(__file__).parent
_FLAGS = ("-std=c11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden")
_WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
_TARGETS = {LIBRARY: ("library.c", "calls.c"), CONTROL: ("control.c",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Paths of the two libraries: NVML's callers load `library`, we load `control`."""

    library: Path
    control: Path


def built() -> Built:
    """Return the libraries; compile those that are not in the cache.

    Raises:
        InputInvalid: no C compiler, it fails, or the cache is not a place of ours.
    """
    folder = _cache() / _cache_key()
    if not folder.is_dir():
        _build(folder)
    return Built(library=folder / LIBRARY, control=folder / CONTROL)


def _cache() -> Path:
    """Return the user's cache folder; it must be the user's own, as code is loaded from it."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    folder = Path(base) / "wattmesh" / "fake-nvml"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise InputInvalid(
            f"fake NVML: cannot use {folder} ({error.strerror}); set XDG_CACHE_HOME to a folder "
            "that you can write to"
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise InputInvalid(
            f"fake NVML: {folder} belongs to another user or others may write to it, and code is "
            "loaded from there; remove it, or set XDG_CACHE_HOME to a folder of your own"
        )
    return folder


def _cache_key() -> str:
    digest = hashlib.sha256(repr((platform.machine(), _FLAGS, _TARGETS)).encode())
    for path in sorted((*_SOURCE.glob("*.c"), *_SOURCE.glob("*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def _compiler() -> str:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise InputInvalid(
        "the fake NVML library is C and there is no compiler (looked for $CC, cc, gcc, clang); "
        "install one: `apt-get install gcc libc6-dev` on Debian and Ubuntu, `dnf install gcc` on "
        "Fedora"
    )


def _build(folder: Path) -> None:
    """Compile both libraries beside `folder` and rename them into place."""
    compiler = _compiler()
    staging = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        for target, own in _TARGETS.items():
            sources = [_SOURCE / name for name in own]
            compile_library(compiler, [*sources, _SOURCE / "state.c"], staging / target)
        try:
            staging.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def compile_library(compiler: str, sources: Sequence[Path], target: Path) -> None:
    """Compile `sources` with the physics into one shared library.

    Raises:
        InputInvalid: the compiler refuses; the message has the end of what it says.
    """
    command = [compiler, *_FLAGS, *_WARNINGS, f"-I{_SOURCE}", f"-Wl,-soname,{target.name}"]
    command += ["-o", str(target), *map(str, sources), str(_SOURCE / "physics.c")]
    command += ["-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputInvalid(
            f"fake NVML: {compiler} fails ({done.returncode}): {done.stderr.strip()[-1500:]}"
        )
