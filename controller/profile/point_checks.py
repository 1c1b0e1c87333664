"""What a point's numbers say beside others: a draw is idle, a point is dominated. Pure."""

from collections.abc import Sequence

from wattmesh import quantities
from wattmesh.controller.profile.measuring.windows import WindowNumbers
from wattmesh.controller.profile.results import MeasuredPoint, ProfileState

IDLE_MARGIN = 0.03
"""A draw this close to the idle draw is no draw of a job."""

MOST_SPREAD = 0.5
"""A point known no better than this is called worse than no other."""

LEANER = 0.98
"""A point that needs less than this share of another's memory is worth having beside it."""


def idle_draw(known: ProfileState, numbers: WindowNumbers, gpus: int) -> str:
    """Say that what was read is no job's power; "" where it may be one, or is hardly known.

    `gpus`: that train.
    """
    if numbers.meter_share >= 1:
        return ""
    idle_w, drawn_w = known.idle_host_w, numbers.host_w
    if numbers.gpu_w is not None:
        idle_w = None if known.idle_gpu_w is None else known.idle_gpu_w * gpus
        drawn_w = numbers.gpu_w
    if idle_w is None or drawn_w is None:
        return ""
    if drawn_w > idle_w * (1 + IDLE_MARGIN + numbers.meter_share):
        return ""
    return (
        f"it drew {quantities.watts(drawn_w)} while it trained, and {quantities.watts(idle_w)} "
        "before the job began: what is read is idle. Let the job compute on the devices that "
        "are read, or name others by job.power"
    )


def dominator(
    points: Sequence[MeasuredPoint], numbers: WindowNumbers, memory_gib: float | None
) -> str:
    """Return a point that is faster and needs fewer joules, beyond both intervals; else "".

    `memory_gib`: that the present point needs; None: not known.
    """
    if numbers.share > MOST_SPREAD:
        return ""
    for each in points:
        slower = numbers.tokens_per_s * (1 + numbers.speed_share) < each.tokens_per_s * (
            1 - each.speed_share
        )
        dearer = numbers.j_per_token * (1 - numbers.share) > each.j_per_token * (1 + each.share)
        leaner = (
            memory_gib is not None
            and each.memory_gib is not None
            and memory_gib < LEANER * each.memory_gib
        )
        if slower and dearer and not leaner:
            return each.id
    return ""
