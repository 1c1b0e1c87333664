"""Converts plain data from a pickle to JSON values."""

from typing import Any

from wattmesh.reconfig.universal.allowance import Allowance

MAX_DEPTH = 40
MAX_VALUES = 100_000


class NotPlain(Exception):
    """The value holds something that JSON cannot represent."""


def as_json(value: Any, allowance: Allowance, where: str) -> Any:
    """Return the value with tuples as lists; the allowance is charged for shared parts each time.

    Raises:
        NotPlain: it holds tensors, bytes, objects or keys that are not text; or is too deep, too
            large, or recursive.
        InputInvalid: the allowance is used up; `where` names the file.
    """
    left = [MAX_VALUES, 0]
    try:
        return _as_json(value, MAX_DEPTH, left)
    finally:
        allowance.made(MAX_VALUES - left[0], where)
        allowance.written(left[1], where)


def characters(value: Any) -> int:
    """Estimate the characters of one or more values from `as_json`."""
    left = [1 << 62, 0]
    _as_json(value, 2 * MAX_DEPTH, left)
    return left[1]


def _as_json(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if depth < 0 or left[0] < 0:
        raise NotPlain
    if type(value) is str:
        left[1] += len(value)
        return value
    left[1] += 8
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) in (list, tuple):
        return [_as_json(each, depth - 1, left) for each in value]
    if type(value) is dict and all(type(key) is str for key in value):
        left[1] += sum(map(len, value))
        return {key: _as_json(each, depth - 1, left) for key, each in value.items()}
    raise NotPlain
