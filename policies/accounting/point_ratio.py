"""How fast a point trains and what it draws here, against what its catalogue says. Pure.

Steady slots are joined to blocks, each long enough for many steps. A block that trains at another
pace than most (a stall, an evaluation) tells nothing of the point, so it is in no average. An alarm
begins where the moving average is off by more than the limit, and ends within half of it; both
follow from the blocks alone, so a daemon that restarts tells the same.

Invariant: what was not measured has no ratio: it is neither 0 nor 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from wattmesh.policies.accounting.baseline import ODD

BLOCKS = 12
"""Blocks that the moving average is over, the newest."""

FEWEST_BLOCKS = 3
"""Fewer blocks at the usual pace are no average."""

STEPS = 20.0
"""A block is so many steps long at least: tokens are told in whole steps, one too many or few."""

AGREEING = 0.5
"""Where fewer of the blocks are near their median there is no usual pace."""

CALM = 0.5
"""An alarm ends where a ratio is within this share of the limit, so that it does not flap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadySlot:
    """A whole slot in which a run trained at one point, undisturbed.

    Attributes:
        tokens: trained over `tokens_s` seconds (from look to look, not from border to border).
        power_w: of all the run's devices; None: not, or not wholly, measured.
        quality: of its joules.
    """

    start: datetime
    end: datetime
    tokens: int
    tokens_s: float
    power_w: float | None = None
    quality: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRatio:
    """A point's moving average over what its catalogue says.

    Attributes:
        tokens_per_s, power_w: the averages; `power_w` None: not measured.
        speed, power: these over the catalogue's; `power` None: one of both is not known.
        speed_alarm, power_alarm: whether the ratio has been off for too long.
        measured_s: seconds that the average of the speed is over. `until`: where they end.
        quality: of the joules.
    """

    tokens_per_s: float
    power_w: float | None
    speed: float
    power: float | None
    speed_alarm: bool
    power_alarm: bool
    measured_s: float
    until: datetime
    quality: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Slots that follow each other. `power_w`: None unless it is known of all of them."""

    end: datetime
    tokens_per_s: float
    seconds: float
    power_w: float | None
    quality: str


def against_catalogue(
    slots: Sequence[SteadySlot],
    *,
    tokens_per_s: float,
    power_w: float | None,
    step_s: float,
    limit: float,
) -> PointRatio | None:
    """Compare a point with its catalogue; None while too little of it was measured.

    Args:
        slots: at this point, in time order.
        tokens_per_s: what the catalogue says.
        power_w: likewise, in the meters' scope and with the GPUs that the run holds idle; None: not
            comparable.
        step_s: seconds of a step by the catalogue.
        limit: share by which a ratio may be off.
    """
    if tokens_per_s <= 0:
        return None
    blocks = [each for each in _blocks(slots, STEPS * step_s) if each.tokens_per_s > 0]
    found: PointRatio | None = None
    for count in range(FEWEST_BLOCKS, len(blocks) + 1):
        usual = _usual(blocks[max(0, count - BLOCKS) : count])
        if not usual:
            continue
        read = [each for each in usual if each.power_w is not None]
        average, drawn = _mean([(each.tokens_per_s, each.seconds) for each in usual]), None
        if len(read) >= FEWEST_BLOCKS:
            drawn = _mean([(each.power_w or 0.0, each.seconds) for each in read])
        speed = average / tokens_per_s
        power = drawn / power_w if drawn is not None and power_w else None
        found = PointRatio(
            tokens_per_s=average,
            power_w=drawn,
            speed=speed,
            power=power,
            speed_alarm=_off(speed, limit, before=found is not None and found.speed_alarm),
            power_alarm=_off(power, limit, before=found is not None and found.power_alarm),
            measured_s=sum(each.seconds for each in usual),
            until=usual[-1].end,
            quality="+".join(sorted({each.quality for each in read if each.quality})),
        )
    return found


def _off(ratio: float | None, limit: float, *, before: bool) -> bool:
    """Whether a ratio is alarming; `before`: it was, one block earlier."""
    return ratio is not None and abs(ratio - 1.0) > (limit * CALM if before else limit)


def _blocks(slots: Sequence[SteadySlot], least_s: float) -> list[_Block]:
    """Join slots that follow each other until they are `least_s` long; what is left is dropped."""
    found: list[_Block] = []
    joined: list[SteadySlot] = []
    for slot in slots:
        if slot.tokens < 0 or slot.tokens_s <= 0:
            joined = []  # it went back to a checkpoint, or a clock was set back
            continue
        if joined and joined[-1].end != slot.start:
            joined = []
        joined.append(slot)
        if sum(each.tokens_s for each in joined) >= least_s:
            found.append(_block(joined))
            joined = []
    return found


def _block(slots: Sequence[SteadySlot]) -> _Block:
    seconds = sum(each.tokens_s for each in slots)
    watts = [(each.power_w, each.tokens_s) for each in slots if each.power_w is not None]
    return _Block(
        end=slots[-1].end,
        tokens_per_s=sum(each.tokens for each in slots) / seconds,
        seconds=seconds,
        power_w=_mean(watts) if len(watts) == len(slots) else None,
        quality="+".join(sorted({each.quality for each in slots if each.quality})),
    )


def _usual(blocks: Sequence[_Block]) -> list[_Block]:
    """Give the blocks at the usual pace; none where there is no such pace."""
    middle = median(each.tokens_per_s for each in blocks)
    near = [each for each in blocks if middle / ODD <= each.tokens_per_s <= middle * ODD]
    enough = max(FEWEST_BLOCKS, AGREEING * len(blocks))
    return near if len(near) >= enough else []


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Give the mean of (value, seconds)."""
    return sum(value * seconds for value, seconds in weighted) / sum(each for _, each in weighted)
