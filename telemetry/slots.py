"""Where intervals of a fixed length begin; whoever needs a border takes it from here.

Invariant: all parts of the program round alike, so a carbon interval and the ledger slot that it
prices have the same borders to the microsecond.
"""

import math
from datetime import datetime, timedelta


def border(origin: datetime, interval_s: float, index: int) -> datetime:
    """Give the start of interval `index`; interval 0 starts at `origin`."""
    return origin + timedelta(seconds=index * interval_s)


def index_at(origin: datetime, interval_s: float, at: datetime) -> int:
    """Give the index of the interval that holds `at`."""
    index = math.floor((at - origin).total_seconds() / interval_s)
    while border(origin, interval_s, index) > at:
        index -= 1
    while border(origin, interval_s, index + 1) <= at:
        index += 1
    return index
