"""Proves that no shard of Megatron's objects is missing.

    <key>/shard_<index of the shard>_<number of shards>     both with a dot between the dims

Invariant: of every object all shards are there, each once (`ShardedObject.unique_key`).
"""

import math
import re
from collections.abc import Iterable

from wattmesh.errors import InputInvalid

_NUMBER = "(?:0|[1-9][0-9]{0,8})"  # one text for each number, so that none is counted twice
_NUMBERS = rf"{_NUMBER}(?:\.{_NUMBER}){{0,7}}"
_SHARD = re.compile(rf"(.+)/shard_({_NUMBERS})_({_NUMBERS})")


def check(keys: Iterable[str], where: str) -> None:
    """Check the names of all objects.

    Raises:
        InputInvalid: a name is malformed, or a shard is missing; `where` names the folder.
    """
    found: dict[str, tuple[tuple[int, ...], int]] = {}
    for name in keys:
        match = _SHARD.fullmatch(name)
        index, shape = (_numbers(match[2]), _numbers(match[3])) if match else ((), ())
        inside = len(index) == len(shape) and all(a < b for a, b in zip(index, shape, strict=True))
        if match is None or not inside:
            raise InputInvalid(f"{where}: {name!r:.80} is no name of an object's shard.")
        known, count = found.get(match[1], (shape, 0))
        if known != shape:
            raise InputInvalid(
                f"{where}: the shards of {match[1]!r:.80} do not agree on how many there are."
            )
        found[match[1]] = (shape, count + 1)
    for key, (shape, count) in found.items():
        if count != math.prod(shape):
            raise InputInvalid(
                f"{where}: of {key!r:.80} {count} shards are there, {math.prod(shape)} were saved; "
                "the checkpoint is incomplete."
            )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
