"""Keeps a failure of wattmesh at a boundary from ending the training.

Up to its checkpoint, a boundary is a sequence of gathers with local work between them. Whatever
is raised on any rank, all ranks leave the sequence together, and can train on.

Invariant: every rank makes the same number of gathers, whether it failed, was told of a failure, or
succeeded.
"""

from collections.abc import Callable
from typing import TypeVar

from wattmesh.errors import CallHuman, Diverged, Fenced, Refused, WattmeshError
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.group import RankFailed
from wattmesh.reconfig.launch.in_step import words

T = TypeVar("T")

_ENDING: tuple[type[WattmeshError], ...] = (Fenced, Refused, CallHuman, Diverged)
"""Errors that end a run which may be switched: its ranks no longer train one and the same run."""


def all_or_none(act: Callable[[], T]) -> T:
    """Return the result of `act` if it succeeded on every rank; a collective call.

    Raises:
        RankFailed: on every rank, if `act` raised on any rank.
    """
    try:
        result = act()
        # This gather reports a rank that failed after its last one.
        group.gather(None)
    except RankFailed:
        raise
    except Exception as error:
        raise group.give_up(_said(error), _kind(error)) from error
    return result


def ending(failure: RankFailed) -> WattmeshError | None:
    """Return the error with which a run that may be switched must end; None if it trains on."""
    if isinstance(failure.__cause__, _ENDING):
        return failure.__cause__
    kinds = {each.__name__: each for each in _ENDING}
    return kinds[failure.kind](str(failure)) if failure.kind in kinds else None


def _kind(error: Exception) -> str:
    return next((each.__name__ for each in _ENDING if isinstance(error, each)), "")


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, WattmeshError) else words(error)
