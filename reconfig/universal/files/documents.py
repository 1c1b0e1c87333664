"""Parses untrusted JSON documents: checked types, ranges and depth.

Invariant: every function returns the type it names or raises ValueError, which the caller turns
into a sentence about the file.
"""

import json
import re
from typing import Any

import numpy as np

MAX_DEPTH = 100
LARGEST = 1 << 62
"""Upper bound of any count, size or time in a document."""

_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_CHUNK = 1 << 20


def load(data: bytes) -> Any:
    """Parse JSON (UTF-8) whose lists and objects are at most MAX_DEPTH deep.

    Raises:
        ValueError: it is not JSON, or nested more deeply.
    """
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(_TEXTS.sub(b"", data))
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _check_depth(bare: bytes) -> None:
    """Refuse deeper nesting; `bare` is JSON with its strings removed."""
    codes = np.frombuffer(bare, dtype=np.uint8)
    depth = 0
    for at in range(0, len(codes), _CHUNK):
        depths = depth + np.cumsum(_STEPS[codes[at : at + _CHUNK]], dtype=np.int32)
        if int(depths.max()) > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        depth = int(depths[-1])


def mapping(value: Any, what: str) -> dict[str, Any]:
    """Check that a value is an object.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not dict:
        raise ValueError(f"{what} is a {type(value).__name__}, not an object")
    return value


def text(value: Any, what: str, most: int = 1024) -> str:
    """Check that a value is a printable text of at most `most` characters.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not str or len(value) > most or not value.isprintable():
        raise ValueError(f"{what} is not a printable text of at most {most} characters")
    return value


def whole(value: Any, what: str, below: int = LARGEST) -> int:
    """Check that a value is an integer in [0, below).

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{what} is not a whole number in [0, {below})")
    return value
