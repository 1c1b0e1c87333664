"""Fields of a row of text as numbers. Pure.

A field that says that nothing is known counts as empty; one that says what cannot be is refused
with a sentence that quotes it.
"""

import math
from collections.abc import Mapping
from typing import TypeAlias

Row: TypeAlias = Mapping[str, str]

NOTHING = ("nan", "na", "n/a", "<na>", "null", "none", "nat", "-", "--", "?", "unknown")
"""What programs write, in any letters, where they know nothing."""

LARGEST = 1e9
"""Above this no size of a model or cluster is believed."""

SHOWN = 40
"""Characters of a wrong value that a reason quotes."""


class RowInvalid(ValueError):
    """A row cannot be predicted; the message says why."""


def text_of(row: Row, name: str) -> str:
    """Give a field without what stands around it; "" where the table says that nothing is known."""
    text = (row.get(name) or "").strip()
    return "" if text.lower() in NOTHING else text


def number_of(row: Row, name: str, default: float | None = None) -> float:
    """Read a number that is not negative.

    Raises:
        RowInvalid: it is missing without a default, or is no such number.
    """
    text = text_of(row, name)
    if not text:
        if default is None:
            raise RowInvalid(f"{name} is missing")
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= LARGEST:
        raise RowInvalid(f"{name} must be a number from 0 to 1e9, not {text[:SHOWN]!r}")
    return number


def degree_of(row: Row, name: str, default: float = 1.0) -> float:
    """Read a degree: a whole number from 1.

    Raises:
        RowInvalid: it is none.
    """
    number = number_of(row, name, default)
    if number < 1 or number != math.floor(number):
        text = text_of(row, name)
        raise RowInvalid(f"{name} must be a whole number from 1, not {text[:SHOWN]!r}")
    return number


def count_of(row: Row, name: str) -> float:
    """Read a whole number; 0 where there is none.

    Raises:
        RowInvalid: it is none.
    """
    number = number_of(row, name, 0.0)
    if number != math.floor(number):
        raise RowInvalid(f"{name} must be a whole number, not {number:g}")
    return number
