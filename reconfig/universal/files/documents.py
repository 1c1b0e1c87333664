"""JSON documents that somebody else may have written: read whole, of known types, not too deep.

Invariant: what a function here gives has the type it says; everything else is one ValueError, that
the caller turns into a sentence about the file.
"""

import json
import re
from typing import Any

import numpy as np

MAX_DEPTH = 100
LARGEST = 1 << 62
"""Any count, size or time in a document is below."""

_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_CHUNK = 1 << 20


def load(data: bytes) -> Any:
    """Parse JSON (UTF-8) whose lists and objects are at most MAX_DEPTH deep.

    Raises:
        ValueError: it is no JSON, or nested more deeply.
    """
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(_TEXTS.sub(b"", data))
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _check_depth(bare: bytes) -> None:
    """Refuse brackets that go too deep; `bare` holds no texts any more."""
    codes = np.frombuffer(bare, dtype=np.uint8)
    depth = 0
    for at in range(0, len(codes), _CHUNK):
        depths = depth + np.cumsum(_STEPS[codes[at : at + _CHUNK]], dtype=np.int32)
        if int(depths.max()) > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        depth = int(depths[-1])


def mapping(value: Any, what: str) -> dict[str, Any]:
    """Give an object.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not dict:
        raise ValueError(f"{what} is a {type(value).__name__}, not an object")
    return value


def text(value: Any, what: str, most: int = 1024) -> str:
    """Give a text of at most `most` characters that can all be printed.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not str or len(value) > most or not value.isprintable():
        raise ValueError(f"{what} is no printable text of at most {most} characters")
    return value


def whole(value: Any, what: str, below: int = LARGEST) -> int:
    """Give a whole number from 0 on.

    Raises:
        ValueError: it is none, or not below `below`.
    """
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{what} is no whole number from 0 on, below {below}")
    return value
