"""The one way we read TOML that people or programs wrote: what no reader can bear is refused here.

Invariant: a document that was read has whole numbers of 64 bits, as TOML promises, and nests no
deeper than whoever walks it can follow.
"""

import tomllib
from typing import Any

DEEPEST = 32
"""Tables and lists in each other; nothing of ours needs ten."""


class NotToml(ValueError):
    """Why a text is no TOML that we read, as half a sentence."""


def read_toml(text: str) -> dict[str, Any]:
    """Read a document.

    Raises:
        NotToml: it is none.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise NotToml(_TOO_DEEP) from error
    except ValueError as error:
        raise NotToml(str(error)) from error
    _look(document, 0)
    return document


_TOO_DEEP = f"it nests tables or lists more than {DEEPEST} deep"


def _look(value: object, depth: int) -> None:
    """Refuse what is too deep or too large, wherever it stands."""
    if depth > DEEPEST:
        raise NotToml(_TOO_DEEP)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise NotToml(f"{str(value)[:20]}... is no whole number of 64 bits")
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _look(each, depth + 1)
