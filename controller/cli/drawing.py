"""Pictures for the command line, drawn in a child process: only that one loads matplotlib."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from wattmesh.controller.cli.output import to_json
from wattmesh.durable import write_bytes
from wattmesh.errors import InputInvalid, WattmeshError

DRAWING_S = 120.0


def drawn(module: str, answer: dict[str, Any]) -> bytes:
    """Draw an answer of the API as a PNG.

    Args:
        module: run as a program: the answer on its standard input, the PNG on its output.
        answer: what to draw.

    Raises:
        WattmeshError: it could not be drawn.
    """
    words = [sys.executable, "-m", module]
    told = to_json(answer).encode()
    try:
        done = subprocess.run(
            words, input=told, capture_output=True, timeout=DRAWING_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise WattmeshError(f"the picture was not drawn within {DRAWING_S:.0f} s") from error
    if done.returncode:
        why = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise WattmeshError(f"the picture could not be drawn: {why}")
    return done.stdout


def put(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        InputInvalid: it cannot be written.
    """
    try:
        write_bytes(path, data)
    except OSError as error:
        raise InputInvalid(f"cannot write {path}: {error.strerror}; name another file") from error
