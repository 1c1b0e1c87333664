"""Statements that are built once: building one costs more than SQLite takes to run it.

Invariant: a statement depends on which values are given, never on what they are.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from sqlalchemy import bindparam

Prepared = tuple[Any, dict[str, Any]]
"""A statement and its values, as `Connection.execute` takes them."""


def prepared(build: Callable[..., Any]) -> Callable[..., Prepared]:
    """Let a function that builds a statement from values build it once.

    Args:
        build: called with the name of each value, and a parameter in its place; with None where a
            value is None, so that it may leave a condition out. A parameter for `in_` takes a list.

    Returns:
        A function of the same values, by name; it gives the statement and what to execute it with.
    """

    @cache
    def built(names: tuple[str, ...], given: tuple[str, ...]) -> Any:
        return build(**{name: bindparam(name) if name in given else None for name in names})

    def with_values(**values: Any) -> Prepared:
        given = {name: value for name, value in values.items() if value is not None}
        return built(tuple(values), tuple(given)), given

    return with_values
