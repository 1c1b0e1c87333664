"""What a script says of its step, as numbers that JSON has: python's own, numpy's or a tensor's.

Invariant: a count is given back as it is, or refused; a loss that is not finite is not known.
"""

import logging
import math
import operator
from typing import TYPE_CHECKING, Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.ranges import shown

if TYPE_CHECKING:  # a job needs torch, and an observed script may have none
    from wattmesh.reconfig.hook.job import Job

log = logging.getLogger(__name__)

LARGEST_LOSS = 1e300
"""The daemon takes none beyond."""


def whole(value: Any, name: str) -> int:
    """Give a count, 0 or more, that `report` was given as `name`.

    Raises:
        InputInvalid: it is none.
    """
    number = _number(value)
    if number is None or number < 0 or not float(number).is_integer():
        raise InputInvalid(
            f"report: {name} = {shown(value)} is no whole number of 0 or more; give how many this "
            "step consumed over all ranks."
        )
    return int(number)


def counted(value: Any, name: str, job: "Job") -> int:
    """Give a count as it was reported; of a run that is only observed at most that.

    Raises:
        InputInvalid: it is none, and the run may be switched.
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
    """Give the whole number below what is none, so that nothing is counted that was not said."""
    number = _number(value)
    return int(number) if number is not None and number > 0 else 0


def loss(value: Any) -> float | None:
    """Give a loss; None where it is not known, not finite or no number."""
    number = _number(value)
    return float(number) if number is not None and abs(number) <= LARGEST_LOSS else None


def _number(value: Any) -> int | float | None:
    """A finite number; None for anything else. A tensor is waited for, where it is on a device."""
    # Torch warns of a tensor that wants a gradient and is made a number.
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
