"""Plain data out of a foreign pickle as JSON values, or not at all."""

from typing import Any

MAX_DEPTH = 40
MAX_VALUES = 100_000


class NotPlain(Exception):
    """The value holds something that JSON has no word for."""


def as_json(value: Any) -> Any:
    """Give the value with tuples as lists.

    Raises:
        NotPlain: it holds tensors, bytes, objects or keys that are no text; or is too deep, too
            large, or within itself.
    """
    return _as_json(value, MAX_DEPTH, [MAX_VALUES])


def _as_json(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if depth < 0 or left[0] < 0:
        raise NotPlain
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [_as_json(each, depth - 1, left) for each in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _as_json(each, depth - 1, left) for key, each in value.items()}
    raise NotPlain
