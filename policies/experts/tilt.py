"""Loads that lean towards cheap GPUs, and the condition under which leaning saves at all.

Loss-free balancing steers every expert's load to a target; a tilted target is what makes it lean,
where a term in the score would be cancelled by the balancing bias (docs/experts.md). The router of
`integrations/pytorch` computes the same factors in a training process; a test holds both together.
"""

import math
from collections.abc import Sequence

from wattmesh.policies.experts.layer_energy import ExpertGpu

LOAD_CAP = 1.15
"""The most that an expert's load may be above the mean."""


def load_factors(
    scores: Sequence[float], strength: float, cap: float = LOAD_CAP
) -> tuple[float, ...]:
    """Give each expert's target load over the mean: exp(-strength * score), capped; the mean is 1.

    What the cap takes off is dealt to those below it, in proportion. Equal scores give exactly 1.
    """
    if not scores:
        return ()
    lowest = min(scores)
    raw = [math.exp(-strength * (score - lowest)) for score in scores]
    capped: set[int] = set()
    while True:
        free = [at for at in range(len(raw)) if at not in capped]
        rest = (len(raw) - cap * len(capped)) / math.fsum(raw[at] for at in free)
        over = {at for at in free if raw[at] * rest > cap}
        if not over or over == set(free):
            break
        capped |= over
    return tuple(cap if at in capped else each * rest for at, each in enumerate(raw))


def shift_gain_w(cheap: ExpertGpu, dear: ExpertGpu, group: Sequence[ExpertGpu]) -> float:
    """Watts that are saved while a cheap GPU does what a dear one of a balanced group did.

    Per second that the cheap one takes for it: what the dear one would have drawn for the same
    rows, less its own, less the idle power of the group that now waits. Between two GPUs of one
    speed this is P_dear - P_cheap - G * P_idle. Where several cheap GPUs take the rows together,
    the group waits only for the part of one: divide by their number what it idles.
    """
    seconds_of_dear = cheap.tokens_per_s / dear.tokens_per_s
    saved_w = (dear.busy_w - dear.idle_w) * seconds_of_dear
    return saved_w - (cheap.busy_w - cheap.idle_w) - math.fsum(each.idle_w for each in group)
