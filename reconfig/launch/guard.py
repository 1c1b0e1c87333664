"""That no failure of ours at a boundary ends a training.

What a boundary does up to its checkpoint is a sequence of gathers with local work between them.
Whatever is raised in it on whichever rank, all ranks leave it together, and train on.

Invariant: every rank makes the same number of gathers, whether it failed, heard of a failure, or
came through.
"""

from collections.abc import Callable
from typing import TypeVar

from wattmesh.errors import CallHuman, Diverged, Fenced, Refused, WattmeshError
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.group import RankFailed
from wattmesh.reconfig.launch.in_step import words

T = TypeVar("T")

_ENDING: tuple[type[WattmeshError], ...] = (Fenced, Refused, CallHuman, Diverged)
"""What a run that may be switched stops for: the ranks no longer train one run, or not this one."""


def all_or_none(act: Callable[[], T]) -> T:
    """Give what `act` gives when it came to its end on every rank; a collective call.

    Raises:
        RankFailed: on every rank, when anything was raised in it on any.
    """
    try:
        result = act()
        # A rank that failed after its last gather is heard of here.
        group.gather(None)
    except RankFailed:
        raise
    except Exception as error:
        raise group.give_up(_said(error), _kind(error)) from error
    return result


def ending(failure: RankFailed) -> WattmeshError | None:
    """The error that a run which may be switched ends with; None where it trains on."""
    if isinstance(failure.__cause__, _ENDING):
        return failure.__cause__
    kinds = {each.__name__: each for each in _ENDING}
    return kinds[failure.kind](str(failure)) if failure.kind in kinds else None


def _kind(error: Exception) -> str:
    return next((each.__name__ for each in _ENDING if isinstance(error, each)), "")


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, WattmeshError) else words(error)
