"""JSON documents with strange values in the place of honest ones."""

import json
import random
from typing import Any

HUGE = "a number of 400 digits"
"""Stands for one until it is written: Python would not write it."""

NASTY: tuple[Any, ...] = (
    *(None, True, "", "x", "\0", "\ud800", [], {}, [[]], [None], {"a": 1}, -1, 0, 2**63, HUGE),
    *(1e308, -1e308, float("nan"), float("inf"), "9999-12-31T23:59:59-12:00", "A" * 100_000),
    *("0001-01-01T00:00:00+12:00", "2026-11-20T12:00:00", "2026-13-45T99:99Z"),
)


def replaced(rng: random.Random, part: Any) -> Any:
    """Go down into a document, and put something nasty into the place where one ends."""
    keys: list[Any] = []
    if isinstance(part, dict | list):
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    if not keys or rng.random() < 1 / 8:
        return rng.choice(NASTY)
    key = rng.choice(keys)
    copy = dict(part) if isinstance(part, dict) else list(part)
    copy[key] = replaced(rng, part[key])
    return copy


def written(document: Any) -> str:
    """Write a document as JSON, or nearly: NaN, infinite and endless numbers are among it."""
    return json.dumps(document).replace(f'"{HUGE}"', "9" * 400)
