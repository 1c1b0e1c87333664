"""Turns what a script reports of its step (Python, numpy or tensor) into numbers for JSON.

Invariant: `whole` returns a count unchanged or refuses it; a loss that is not finite counts as
unknown.
"""

import logging
import math
import operator
from typing import TYPE_CHECKING, Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.ranges import shown

if TYPE_CHECKING:  # a job needs torch, and an observed script may have none
    from wattmesh.reconfig.hook.job import AttachedJob

log = logging.getLogger(__name__)

LARGEST_LOSS = 1e300
"""The daemon accepts no larger absolute value."""


def whole(value: Any, name: str) -> int:
    """Return a count, 0 or more, that `report` was given as `name`.

    Raises:
        InputInvalid: the value is not a whole number of 0 or more.
    """
    number = _number(value)
    if number is None or number < 0 or not float(number).is_integer():
        raise InputInvalid(
            f"report: {name} = {shown(value)} is no whole number of 0 or more; give how many this "
            "step consumed over all ranks."
        )
    return int(number)


def counted(value: Any, name: str, job: "AttachedJob") -> int:
    """Return a count as reported; of a run that is only observed, round an invalid one down.

    Raises:
        InputInvalid: the value is not a count, and the run may be switched.
    """
    try:
        return whole(value, name)
    except InputInvalid as error:
        if job.acted_on:
            raise
        if not job.misreported:
            job.misreported = f"{error} Counted is no more than that."
            log.error("%s", job.misreported)
        return at_most(value)


def at_most(value: Any) -> int:
    """Round down to a count, 0 at least, so that no more is counted than was reported."""
    number = _number(value)
    return int(number) if number is not None and number > 0 else 0


def loss(value: Any) -> float | None:
    """Return a loss; None if it is unknown, not a finite number, or beyond `LARGEST_LOSS`."""
    number = _number(value)
    return float(number) if number is not None and abs(number) <= LARGEST_LOSS else None


def _number(value: Any) -> int | float | None:
    """Return a finite number, None for anything else; a tensor on a device is synchronized."""
    # torch warns when a tensor that requires grad is converted to a number.
    value = value.detach() if hasattr(value, "detach") else value
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    try:
        number = float(value) if not isinstance(value, str | bytes) else math.nan
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None
