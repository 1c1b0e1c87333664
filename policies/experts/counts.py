"""How many experts each GPU of a mixed group holds, so that all end at about the same time.

With equal loads a GPU that is twice as fast holds twice as many. Counts are whole, so the group is
rarely balanced exactly; what is found is the best that whole counts can do.
"""

import heapq
import math
from collections.abc import Sequence

from wattmesh.errors import InputInvalid


def balanced_counts(
    experts: int,
    tokens_per_s: Sequence[float],
    *,
    most: Sequence[int] | None = None,
    least: int = 0,
) -> tuple[int, ...]:
    """Deal experts of one layer so that the slowest GPU is as fast as can be.

    One after the other goes to the GPU that would end first with it. As all are equally large,
    no other dealing has a lower largest count / speed (an exchange argument; tests try all).

    Args:
        experts: of one layer, equally loaded.
        tokens_per_s: speed of each GPU.
        most: experts that fit on each GPU; None: as many as there are.
        least: experts that each GPU holds at least.

    Raises:
        InputInvalid: there are no GPUs, a speed is not positive, or the experts do not fit.
    """
    if not tokens_per_s or not all(math.isfinite(each) and each > 0 for each in tokens_per_s):
        raise InputInvalid(f"expert counts need GPUs with speeds above 0, not {tokens_per_s!r:.80}")
    room = [experts] * len(tokens_per_s) if most is None else list(most)
    if len(room) != len(tokens_per_s):
        raise InputInvalid(f"{len(room)} limits were given for {len(tokens_per_s)} GPUs")
    if least * len(room) > experts or sum(room) < experts or any(each < least for each in room):
        raise InputInvalid(
            f"{experts} experts do not fit: {len(room)} GPUs hold {least * len(room)} at least and "
            f"{sum(room)} at most"
        )
    counts = [least] * len(room)
    ends = [((least + 1) / speed, at) for at, speed in enumerate(tokens_per_s) if room[at] > least]
    heapq.heapify(ends)
    for _ in range(experts - least * len(room)):
        _, at = heapq.heappop(ends)
        counts[at] += 1
        if counts[at] < room[at]:
            heapq.heappush(ends, ((counts[at] + 1) / tokens_per_s[at], at))
    return tuple(counts)
