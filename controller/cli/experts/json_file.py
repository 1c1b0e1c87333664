"""Reads a JSON file that a person names, with one sentence for whatever is wrong with it."""

import json
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.named_file import read_named

LARGEST_BYTES = 64 << 20


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputInvalid: the file cannot be read, or holds none.
    """
    try:
        found = json.loads(read_named(path, LARGEST_BYTES))
    except OSError as error:
        raise InputInvalid(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputInvalid(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputInvalid(f"{path} holds no JSON object")
    return found


def listed(value: Any, what: str, most: int) -> list[Any]:
    """Take a list of at least one and at most `most` things.

    Raises:
        InputInvalid: it is none.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise InputInvalid(f"{what} must be a list of 1 to {most} things")
    return value


def number(given: dict[str, Any], key: str, what: str, default: float | None = None) -> float:
    """Take a number out of an object.

    Raises:
        InputInvalid: it is missing, or no number.
    """
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputInvalid(f"{what} has no number {key!r}")
    try:
        return float(value)
    except OverflowError:
        raise InputInvalid(f"{what}: {key} is beyond any number that is computed with") from None


def text(given: dict[str, Any], key: str, what: str) -> str:
    """Take a short text out of an object.

    Raises:
        InputInvalid: it is missing, empty or longer than 128 letters.
    """
    value = given.get(key)
    if not isinstance(value, str) or not 1 <= len(value) <= 128:
        raise InputInvalid(f"{what} has no text {key!r} of 1 to 128 letters")
    return value


def known_keys(given: Any, keys: frozenset[str], what: str) -> dict[str, Any]:
    """Take an object that has none but these keys.

    Raises:
        InputInvalid: it is none, or has another.
    """
    if not isinstance(given, dict):
        raise InputInvalid(f"{what} is no JSON object")
    more = sorted(set(given) - keys)
    if more:
        raise InputInvalid(f"{what} has {more[0]!r:.60}; it may have {', '.join(sorted(keys))}")
    return given
