"""From the ends of steps and the energy between them to a point's numbers. Pure.

Steps and boundaries are measured separately, then combined for the job's own checkpoint interval,
because profiling saves more often than the job does. An *interval* begins at a boundary: the
boundary with its first step, then plain steps.

A job paced by simulated devices follows their timetable: a step that this machine ended late is
taken to have ended when it was due, because the steps after it catch up.

Invariant: every number has an interval that holds the meter's error bound and the spread between
periods; a point with too few periods has no numbers at all.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

from wattmesh.reconfig.step_log import StepRow

NORMAL = 1.05
"""A step is at normal pace if it takes at most this much of the usual time."""

FEWEST = 3
"""Periods without which there is no interval."""

_T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What some devices drew in a window.

    Attributes:
        gpu_j, host_j: None where that was not read throughout, or nothing reads it.
        error_j: bound on the error of their sum.
        parked_w: of one GPU of the job that the layout does not use; None where there is none.
        quality: of the readings, as `wattmesh.telemetry.readings` merges them.
    """

    gpu_j: float | None
    host_j: float | None
    error_j: float
    parked_w: float | None = None
    quality: str = "measured"

    @property
    def energy_j(self) -> float | None:
        """All that is known to have been drawn; None where nothing is."""
        known = [each for each in (self.gpu_j, self.host_j) if each is not None]
        return sum(known) if known else None


Drawn = Callable[[float, float], Draw | None]
"""What the point's devices drew between two moments (monotonic); None: not known, or not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInterval:
    """One boundary with the steps after it.

    Attributes:
        start_s: end of the last step before the boundary. `first_s`: end of the first step after
            it. `end_s`: end of the last step. plain: number of steps after the first.
    """

    start_s: float
    first_s: float
    end_s: float
    plain: int

    @property
    def step_s(self) -> float:
        """Mean duration of its plain steps."""
        return (self.end_s - self.first_s) / self.plain


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowNumbers:
    """What a window says of its point.

    Attributes:
        step_s: a plain step. boundary_s: what a boundary adds to it.
        tokens_per_s, power_w: at the job's own checkpoint interval.
        gpu_w, host_w: parts of `power_w`; None: not read.
        speed_share: half of the 95 % interval of `tokens_per_s`, as a share of it.
        meter_share: bound on the meter's error, as a share of the energy.
        periods, steps, seconds: what it rests on.
        settled: whether power and pace stay the same over the window.
    """

    step_s: float
    boundary_s: float
    tokens_per_s: float
    power_w: float
    gpu_w: float | None
    host_w: float | None
    parked_w: float | None
    speed_share: float
    meter_share: float
    periods: int
    steps: int
    seconds: float
    settled: bool
    quality: str

    @property
    def j_per_token(self) -> float:
        """Joules per token."""
        return self.power_w / self.tokens_per_s

    @property
    def share(self) -> float:
        """Half of the interval of the joules per token, as a share of them."""
        return self.speed_share + self.meter_share


def due_s(row: StepRow) -> float:
    """Return when a step ended, or was due to where a simulated device paces it."""
    return row.monotonic_s - row.overrun_s


def periods(rows: Sequence[StepRow], every: int, after: int) -> list[CheckpointInterval]:
    """Sort steps into periods that begin later than step `after`."""
    found = []
    steps = {row.step: row for row in rows}
    marks = [row for row in rows if row.step > after and row.step % every == 0]
    for begin, end in pairwise(marks):
        first = steps.get(begin.step + 1)
        if end.step - begin.step == every and first is not None and every > 1:
            found.append(
                CheckpointInterval(
                    start_s=due_s(begin), first_s=due_s(first), end_s=due_s(end), plain=every - 1
                )
            )
    return found


def window_numbers(
    found: Sequence[CheckpointInterval],
    drawn: Drawn,
    *,
    tokens_per_step: int,
    boundary_every: int,
    precision: float,
) -> WindowNumbers | None:
    """Compute the numbers of the newest steady window; None where there is none yet.

    The window is the longest that ends now and is settled: warm-up is what has to be left out for
    that. Where none is settled, it is the newer half.
    """
    for start in range(max(1, len(found) - FEWEST + 1)):
        window = found[start:]
        if len(window) < FEWEST:
            return None
        if start > len(found) // 2 or _is_settled(window, drawn, precision):
            break
    energy = drawn(window[0].start_s, window[-1].end_s)
    if energy is None or not energy.energy_j:
        return None
    # Boards that a switch parks draw for a while as they did, so the newer half tells, if it was
    # read.
    newer = drawn(window[len(window) // 2].start_s, window[-1].end_s)
    parked = [each.parked_w for each in (newer, energy) if each and each.parked_w is not None]
    seconds = window[-1].end_s - window[0].start_s
    step_s = sum(each.end_s - each.first_s for each in window) / sum(each.plain for each in window)
    if not (step_s > 0 and seconds > 0):
        return None
    boundary_s = max(0.0, median(each.first_s - each.start_s for each in window) - step_s)
    interval_s = boundary_every * step_s + boundary_s
    mean_w = energy.energy_j / seconds
    apart = _apart(window, drawn, mean_w, step_s, precision)
    power_w = mean_w
    if apart is not None:
        plain_w, added_w, each_s = apart
        plain_j = boundary_every * step_s * plain_w
        power_w = (plain_j + each_s * added_w) / (boundary_every * step_s + each_s)
    scale = power_w / mean_w
    return WindowNumbers(
        step_s=step_s,
        boundary_s=boundary_s,
        tokens_per_s=boundary_every * tokens_per_step / interval_s,
        power_w=power_w,
        gpu_w=None if energy.gpu_j is None else scale * energy.gpu_j / seconds,
        host_w=None if energy.host_j is None else scale * energy.host_j / seconds,
        parked_w=parked[0] if parked else None,
        speed_share=spread_share([each.step_s for each in window]),
        meter_share=energy.error_j / energy.energy_j,
        periods=len(window),
        steps=sum(each.plain + 1 for each in window),
        seconds=seconds,
        settled=_is_settled(window, drawn, precision),
        quality=energy.quality,
    )


def spread_share(values: Sequence[float]) -> float:
    """Return half of the 95 % interval of a mean, as a share of it; infinite for one value."""
    if len(values) < 2:
        return math.inf
    t = _T95.get(len(values) - 1, 1.96 + 2.6 / (len(values) - 1))
    return t * stdev(values) / math.sqrt(len(values)) / fmean(values)


def at_pace(rows: Sequence[StepRow], after: int, step_s: float) -> StepRow | None:
    """Return the first step of normal pace after step `after`; None where there is none."""
    ends = [row for row in rows if row.step >= after]
    for before, row in pairwise(ends):
        if due_s(row) - due_s(before) <= NORMAL * step_s and before.step > after:
            return row
        if before.step == after and row.elapsed_s - row.overrun_s <= NORMAL * step_s:
            return row
    return None


def _is_settled(window: Sequence[CheckpointInterval], drawn: Drawn, precision: float) -> bool:
    """Tell whether both halves of a window have one pace and one power, within their errors."""
    middle = len(window) // 2
    if middle < 1:
        return True
    halves = (window[:middle], window[middle:])
    paces = [fmean(each.step_s for each in half) for half in halves]
    # The older half may hold the warm-up, so its spread allows nothing.
    spread = spread_share([each.step_s for each in halves[1]])
    allowed = precision + math.sqrt(2) * (spread if math.isfinite(spread) else 0.0)
    if abs(paces[0] - paces[1]) > allowed * paces[1]:
        return False
    draws = [drawn(half[0].start_s, half[-1].end_s) for half in halves]
    watts, errors = [], []
    for half, draw in zip(halves, draws, strict=True):
        if draw is None or not draw.energy_j:
            return False
        watts.append(draw.energy_j / (half[-1].end_s - half[0].start_s))
        errors.append(draw.error_j / draw.energy_j)
    return abs(watts[0] - watts[1]) <= (allowed + sum(errors)) * watts[1]


def _apart(
    window: Sequence[CheckpointInterval],
    drawn: Drawn,
    mean_w: float,
    step_s: float,
    precision: float,
) -> tuple[float, float, float] | None:
    """Return the power of plain steps, that of boundaries, and the seconds that one adds.

    None where the meter does not resolve the plain steps; then both count as the mean.
    """
    plain_s = sum(each.end_s - each.first_s for each in window)
    added_s = sum(each.first_s - each.start_s - step_s for each in window)
    draws = [drawn(each.first_s, each.end_s) for each in window]
    known = [each for each in draws if each is not None and each.energy_j is not None]
    plain_j = sum(each.energy_j or 0.0 for each in known)
    error_j = sum(each.error_j for each in known)
    if len(known) < len(window) or added_s <= 0 or error_j > precision * plain_j:
        return None
    plain_w = plain_j / plain_s
    whole_s = window[-1].end_s - window[0].start_s
    added_j = mean_w * whole_s - plain_w * (whole_s - added_s)
    # Where checkpoints add hardly any time, joules divided by seconds could be any number.
    return plain_w, min(plain_w, max(0.0, added_j) / added_s), added_s / len(window)
