"""Predicts what a switch in place spends, from what switches like it were measured to spend. Pure.

Each phase is fitted by itself, over the switches of one machine:

    seconds = fixed + per rank * ranks + bytes / bandwidth

`bytes` are those that all ranks of the old or the new layout hold, or those of one rank: whichever
explains the phase better. No coefficient is negative. A term whose quantity hardly varied is left
out; how a switch of another size would differ is then not known, and the band says so.

Invariant: no prediction comes from fewer than FEWEST whole switches, and one odd switch among them
(ten times as long, or as short) does not move it: residuals are logarithms, and those far beyond
the usual ones weigh nothing (Tukey's biweight; Huber and Ronchetti, Robust Statistics, 4.8).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import median

from wattmesh.reconfig.catalogue import SwitchSpend
from wattmesh.reconfig.layout import Layout

FEWEST = 3
"""Fewer whole switches predict nothing."""

VARIED = 1.5
"""A quantity whose largest value is below so many times its smallest explains nothing."""

WIDEST = 4.0
"""A prediction whose band spans a larger factor counts as a guess: nobody plans with it."""

LEAST_SPREAD = 0.05
"""Relative; what two equal switches differ by on a quiet machine."""

NEWEST = 24
"""Of a run's own switches the newest count: older ones tell of older days, and cost time."""

_LEAST_S = 1e-4
"""Times are reported in tenths of milliseconds, so less than one is as good as one."""

_MOST_ERROR = 50.0
"""As a logarithm: a band that wide is no band, and wider ones are no numbers."""

_ROUNDS, _CLOSE = 12, 1e-3
_TUKEY = 4.685
_GB = 1e9
_T90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
"""Student's t, two-sided 90 %, for 1 to 10 degrees of freedom."""


class Side(StrEnum):
    """Which layout's ranks and bytes a phase works on."""

    BEFORE = "before"
    AFTER = "after"
    LARGER = "larger"


PHASES: dict[str, Side] = {
    "save": Side.BEFORE,
    "teardown": Side.BEFORE,
    "groups": Side.LARGER,
    "build": Side.AFTER,
    "load": Side.AFTER,
    "verify": Side.AFTER,
    "agree": Side.LARGER,
    "first": Side.AFTER,
}
"""The phases of a switch in their order, by the names of `SwitchSpend`'s fields without `_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchShape:
    """How large a switch is.

    Attributes:
        ranks_before, ranks_after: of the layouts.
        held_before, held_after: bytes of state that all ranks of the layouts hold together.
    """

    ranks_before: int
    ranks_after: int
    held_before: float
    held_after: float

    @classmethod
    def of(cls, before: Layout, after: Layout, state_bytes: int) -> "SwitchShape":
        """Return the shape of a switch of a state with so many logical bytes."""
        return cls(
            ranks_before=before.world_size,
            ranks_after=after.world_size,
            held_before=float(state_bytes * before.dp_replicate),
            held_after=float(state_bytes * after.dp_replicate),
        )

    def on(self, side: Side) -> tuple[float, float]:
        """Return the ranks and the gigabytes that count on one side."""
        before = (float(self.ranks_before), self.held_before / _GB)
        after = (float(self.ranks_after), self.held_after / _GB)
        if side is Side.LARGER:
            return max(before[0], after[0]), max(before[1], after[1])
        return before if side is Side.BEFORE else after


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpend:
    """What one switch spent, and how large it was."""

    shape: SwitchShape
    spend: SwitchSpend

    @property
    def total_s(self) -> float | None:
        """The whole stall; None where a phase is not known."""
        return whole_s(self.spend)


def seconds_of(spend: SwitchSpend, phase: str) -> float | None:
    """Return the seconds of one phase; None: not known."""
    found: float | None = getattr(spend, f"{phase}_s")
    return found


def whole_s(spend: SwitchSpend) -> float | None:
    """Return the whole stall; None where a phase is not known."""
    found = [seconds_of(spend, name) for name in PHASES]
    return None if None in found else sum(each or 0.0 for each in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseModel:
    """What one phase takes.

    Attributes:
        fixed_s, per_rank_s, s_per_gb: >= 0. `by_rank`: whether the gigabytes are those of one rank
            instead of all.
    """

    name: str
    fixed_s: float = 0.0
    per_rank_s: float = 0.0
    s_per_gb: float = 0.0
    by_rank: bool = False

    def seconds(self, shape: SwitchShape) -> float:
        """Return the seconds of this phase."""
        ranks, gigabytes = shape.on(PHASES[self.name])
        if self.by_rank:
            gigabytes /= ranks
        return self.fixed_s + self.per_rank_s * ranks + self.s_per_gb * gigabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSwitch:
    """The stall of a switch that was not measured.

    Attributes:
        seconds: from the boundary to the end of the first step at normal pace.
        low_s, high_s: it is to lie between them in nine of ten cases.
        phases: seconds by phase, in order; they add up to `seconds`.
        samples: measured switches behind it.
    """

    seconds: float
    low_s: float
    high_s: float
    phases: tuple[tuple[str, float], ...]
    samples: int

    @property
    def sure(self) -> bool:
        """Whether the band is narrow enough to plan with."""
        return self.high_s <= WIDEST * self.low_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchModel:
    """What switches of one machine spend.

    Attributes:
        phases: in the order of `PHASES`.
        samples: measured switches behind it.
        spread: usual error of a whole switch, as a logarithm.
        ranks, gigabytes: smallest and largest that were measured, on any side.
    """

    phases: tuple[PhaseModel, ...]
    samples: int
    spread: float
    ranks: tuple[float, float]
    gigabytes: tuple[float, float]

    def predict(self, shape: SwitchShape) -> PredictedSwitch:
        """Predict the stall of a switch."""
        found = [(each.name, each.seconds(shape)) for each in self.phases]
        bare_s = max(_LEAST_S, sum(seconds for _, seconds in found))
        low, high, doubt = self._unknown(shape)
        middle = math.sqrt(low * high)
        freedom = min(max(1, self.samples - 2), len(_T90))
        error = _T90[freedom - 1] * self.spread * math.sqrt(1.0 + 1.0 / self.samples)
        band = math.exp(min(error, _MOST_ERROR)) * doubt
        return PredictedSwitch(
            seconds=bare_s * middle,
            low_s=bare_s * low / band,
            high_s=bare_s * high * band,
            phases=tuple((name, seconds * middle) for name, seconds in found),
            samples=self.samples,
        )

    def _unknown(self, shape: SwitchShape) -> tuple[float, float, float]:
        """Return by which factors the stall may differ beyond what was measured: low, high, both.

        A quantity that hardly varied may explain all of the time or none of it. One that did vary
        is trusted up to twice as far as it was measured, and from there on half of the way.
        """
        sides = [shape.on(Side.BEFORE), shape.on(Side.AFTER)]
        low = high = doubt = 1.0
        for at, (smallest, largest) in enumerate((self.ranks, self.gigabytes)):
            asked = [side[at] for side in sides]
            above = max(asked) / largest if max(asked) > VARIED * largest else 1.0
            below = smallest / min(asked) if min(asked) * VARIED < smallest else 1.0
            if largest < VARIED * smallest:
                low, high = low / below, high * above
            else:
                doubt *= math.sqrt(max(1.0, above / 2.0) * max(1.0, below / 2.0))
        return low, high, doubt


def fit(measured: Sequence[MeasuredSpend]) -> SwitchModel | None:
    """Fit the model to the switches of one machine; None: they are too few, or contradict it."""
    whole = [(each, total) for each in measured if (total := each.total_s)]
    if len(whole) < FEWEST:
        return None
    phases = tuple(_phase(name, [each for each, _ in whole]) for name in PHASES)
    errors = [
        math.log(
            max(_LEAST_S, total) / max(_LEAST_S, sum(phase.seconds(each.shape) for phase in phases))
        )
        for each, total in whole
    ]
    more = len(whole) / max(1, len(whole) - 2)
    spread = 1.4826 * median(abs(each) for each in errors) * math.sqrt(more)
    sides = [each.shape.on(side) for each, _ in whole for side in (Side.BEFORE, Side.AFTER)]
    return SwitchModel(
        phases=phases,
        samples=len(whole),
        spread=max(LEAST_SPREAD, spread),
        ranks=(min(side[0] for side in sides), max(side[0] for side in sides)),
        gigabytes=(min(side[1] for side in sides), max(side[1] for side in sides)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchForecast:
    """Predicts the switches of one job.

    Attributes:
        model: of the machine that it runs on, or of that of its profile.
        own: whether it was fitted to the run's own switches.
        state_bytes: of the job's logical state.
        layouts: by id of the point.
    """

    model: SwitchModel
    own: bool
    state_bytes: int
    layouts: Mapping[str, Layout]

    def between(self, origin: str, target: str) -> PredictedSwitch | None:
        """Predict a switch in place; None for points that are not known."""
        before, after = self.layouts.get(origin), self.layouts.get(target)
        if before is None or after is None:
            return None
        return self.model.predict(SwitchShape.of(before, after, self.state_bytes))


def forecast(
    layouts: Mapping[str, Layout], own: Sequence[SwitchSpend], calibration: Sequence[SwitchSpend]
) -> SwitchForecast | None:
    """Learn from a run's own switches, else from its profile's; None: nothing can be predicted.

    A calibration that the run's own few switches contradict was made on another machine, and
    predicts nothing.

    Args:
        layouts: of the catalogue's points, by their ids.
        own: what switches of the run spent on the machines that it is on, newest first.
        calibration: what those of its profile spent, newest last.
    """
    if not own and not calibration:
        return None
    return _learned(tuple(layouts.items()), tuple(own[:NEWEST]), tuple(calibration))


@lru_cache(maxsize=4096)
def _learned(
    named: tuple[tuple[str, Layout], ...],
    own: tuple[SwitchSpend, ...],
    calibration: tuple[SwitchSpend, ...],
) -> SwitchForecast | None:
    layouts = dict(named)
    here, profiled = _shaped(layouts, own), _shaped(layouts, calibration)
    if not here and not profiled:
        return None
    model, state_bytes = fit(here), (here or profiled[::-1])[0].spend.state_bytes
    if model is not None:
        return SwitchForecast(model=model, own=True, state_bytes=state_bytes, layouts=layouts)
    model = fit(profiled)
    if model is None or any(_contradicts(model, each) for each in here):
        return None
    return SwitchForecast(model=model, own=False, state_bytes=state_bytes, layouts=layouts)


def _shaped(
    layouts: Mapping[str, Layout], spends: Sequence[SwitchSpend]
) -> tuple[MeasuredSpend, ...]:
    return tuple(
        MeasuredSpend(
            shape=SwitchShape.of(layouts[each.origin], layouts[each.target], each.state_bytes),
            spend=each,
        )
        for each in spends
        if each.origin in layouts and each.target in layouts
    )


def _contradicts(model: SwitchModel, each: MeasuredSpend) -> bool:
    total_s, found = each.total_s, model.predict(each.shape)
    return bool(total_s) and not found.low_s / 2.0 <= (total_s or 0.0) <= found.high_s * 2.0


def _phase(name: str, measured: Sequence[MeasuredSpend]) -> PhaseModel:
    """Fit one phase: the terms that explain it best, none with a negative coefficient."""
    if name == "first":
        # What is compiled for a layout is in its first visit only, and the next is a first one.
        cold = [each for each in measured if each.spend.cold]
        measured = cold if len(cold) >= FEWEST else measured
    sides = [each.shape.on(PHASES[name]) for each in measured]
    seconds = [max(_LEAST_S, seconds_of(each.spend, name) or 0.0) for each in measured]
    varied = len(set(sides))
    best, best_score = PhaseModel(name=name, fixed_s=median(seconds)), math.inf
    for terms in _choices(sides):
        if len(terms) > max(1, varied - 1):
            continue
        rows = [[_term(term, side) for term in terms] for side in sides]
        found = _robust(rows, seconds)
        if found is None:
            continue
        errors = _errors(rows, seconds, found)
        score = (0.02 + sum(min(1.0, abs(each)) for each in errors) / len(errors)) * (
            1.0 + 0.1 * len(terms)
        )
        if score < best_score:
            best, best_score = _model(name, terms, found), score
    return best


_FIXED, _RANKS, _ALL_GB, _RANK_GB = "fixed", "ranks", "gigabytes of all", "gigabytes of one rank"


def _choices(sides: Sequence[tuple[float, float]]) -> Iterable[tuple[str, ...]]:
    """Give the sets of terms that the measurements can tell apart."""
    ranks, sizes = [each[0] for each in sides], [each[1] for each in sides]
    with_ranks = max(ranks) >= VARIED * min(ranks)
    with_bytes = max(sizes) >= VARIED * min(sizes)
    for by_bytes in ((), (_ALL_GB,), (_RANK_GB,)) if with_bytes else ((),):
        for by_ranks in ((), (_RANKS,)) if with_ranks else ((),):
            for fixed in ((_FIXED,), ()):
                if fixed or by_ranks or by_bytes:
                    yield (*fixed, *by_ranks, *by_bytes)


def _term(name: str, side: tuple[float, float]) -> float:
    ranks, gigabytes = side
    return {_FIXED: 1.0, _RANKS: ranks, _ALL_GB: gigabytes, _RANK_GB: gigabytes / ranks}[name]


def _model(name: str, terms: Sequence[str], found: Sequence[float]) -> PhaseModel:
    value = dict(zip(terms, found, strict=True))
    return PhaseModel(
        name=name,
        fixed_s=value.get(_FIXED, 0.0),
        per_rank_s=value.get(_RANKS, 0.0),
        s_per_gb=value.get(_ALL_GB, 0.0) + value.get(_RANK_GB, 0.0),
        by_rank=_RANK_GB in value,
    )


def _robust(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float] | None:
    """Fit coefficients >= 0 to relative errors, far ones left out; None: there are none."""
    weights = [1.0 / each**2 for each in seconds]
    found = _solved(rows, seconds, weights)
    for _ in range(_ROUNDS):
        if found is None or min(found) < 0:
            return None
        values = [_value(row, found) for row in rows]
        errors = [math.log(each / value) for each, value in zip(seconds, values, strict=True)]
        limit = _TUKEY * max(LEAST_SPREAD, 1.4826 * median(abs(each) for each in errors))
        weights = [
            max(1e-9, 1.0 - (error / limit) ** 2) ** 2 / value**2
            if abs(error) < limit
            else 1e-12 / value**2
            for value, error in zip(values, errors, strict=True)
        ]
        before, found = found, _solved(rows, seconds, weights)
        if found is not None and all(map(_settled, before, found)):
            break
    return found if found is not None and min(found) >= 0 else None


def _settled(before: float, after: float) -> bool:
    return abs(after - before) <= _CLOSE * abs(before)


def _value(row: Sequence[float], found: Sequence[float]) -> float:
    total = sum(term * each for term, each in zip(row, found, strict=True))
    return max(_LEAST_S, total)


def _errors(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], found: Sequence[float]
) -> list[float]:
    return [math.log(each / _value(row, found)) for row, each in zip(rows, seconds, strict=True)]


def _solved(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], weights: Sequence[float]
) -> list[float] | None:
    """Solve weighted least squares by its normal equations; None: they have no one solution."""
    size = len(rows[0])
    scale = [math.sqrt(sum(w * r[k] ** 2 for r, w in zip(rows, weights, strict=True))) or 1.0
             for k in range(size)]  # fmt: skip
    table = [
        [
            sum(w * r[i] * r[k] for r, w in zip(rows, weights, strict=True)) / scale[i] / scale[k]
            for k in range(size)
        ]
        + [sum(w * r[i] * y for r, w, y in zip(rows, weights, seconds, strict=True)) / scale[i]]
        for i in range(size)
    ]
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(table[row][at]))
        if abs(table[pivot][at]) < 1e-9:
            return None
        table[at], table[pivot] = table[pivot], table[at]
        for row in range(size):
            if row != at:
                factor = table[row][at] / table[at][at]
                table[row] = [a - factor * b for a, b in zip(table[row], table[at], strict=True)]
    return [table[at][size] / table[at][at] / scale[at] for at in range(size)]
