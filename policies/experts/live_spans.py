"""Spans of a live run's GPUs: what its ranks counted, beside what their counters rose. Pure.

A run counts at its save steps; counters are read at other moments, and are interpolated between the
two readings around a count. Invariant: a span in which something was not measured, or in which the
clock or the limit changed, teaches nothing; unknown is never zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattmesh.policies.experts.costs import (
    LEAST_SPAN_S,
    ClockAndLimit,
    CounterSpan,
    OfflineSweep,
    TokenCost,
    begin,
    learned,
)
from wattmesh.policies.experts.scores import GpuTime

LONGEST_GAP_S = 330.0
"""Two readings further apart say too little of the moment between them; agents deliver at least
every 300 s."""

NEWEST = 0.2
"""Weight of the newest span's times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterMark:
    """One GPU at one moment.

    Attributes:
        at_s: wall time, in seconds.
        energy_j: everything that was ever booked of it. `dark_s`, `lit_s`: time that was not
            measured, and the part of it that was booked later; neither ever falls.
        setting: its clock and limit. `since_s`: since when.
    """

    at_s: float
    energy_j: float
    dark_s: float
    lit_s: float
    setting: ClockAndLimit
    since_s: float
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardPair:
    """A paired probe; see `LossPair` of `reconfig.expert_wire`."""

    step: int
    gap: float
    strength: float
    lean: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCount:
    """What a run's ranks had computed, and what its GPUs had drawn, at one moment.

    Attributes:
        tokens, busy_s: by GPU, since the launch began; see `ExpertTokenReport`.
        launch, layout: counts of another launch or layout are not compared.
        marks: by GPU, those that are known.
        strength, variation, stopped, version, pending, gap: what its routers lean by; see
            `ExpertTokenReport`.
        pairs: those that wait, oldest first. `dropped`: those of the launch that were dropped.
        seq: of the report.
    """

    at_s: float
    launch: str
    layout: str
    tokens: Mapping[str, int]
    busy_s: Mapping[str, float] = field(default_factory=dict)
    marks: Mapping[str, CounterMark] = field(default_factory=dict)
    strength: float = 0.0
    variation: float = 0.0
    stopped: bool = False
    version: int = 0
    pending: float = 0.0
    gap: float | None = None
    pairs: tuple[HeardPair, ...] = ()
    dropped: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """What is known of a run's GPUs.

    Attributes:
        before: the count that the next span begins with.
        times: by GPU, averaged over the last spans, where the ranks measure them.
        unused: by GPU, why its newest span taught nothing.
    """

    before: RunCount | None = None
    costs: Mapping[str, TokenCost] = field(default_factory=dict)
    times: Mapping[str, GpuTime] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)


def mark_at(marks: Sequence[CounterMark], at_s: float) -> CounterMark | None:
    """Interpolate one GPU's readings, oldest first, at a moment; None where they do not say."""
    after = next((n for n, each in enumerate(marks) if each.at_s >= at_s), None)
    if after is None:
        return None
    last = marks[after]
    if last.at_s == at_s:
        return last
    if after == 0:
        return None
    first = marks[after - 1]
    length_s = last.at_s - first.at_s
    whole = (first.dark_s, first.lit_s, first.simulated) == (
        last.dark_s,
        last.lit_s,
        last.simulated,
    )
    if length_s > LONGEST_GAP_S or not whole or last.energy_j < first.energy_j:
        return None
    share = (at_s - first.at_s) / length_s
    energy_j = first.energy_j + share * (last.energy_j - first.energy_j)
    # Of the later reading: a change between the two must not look older than it is.
    return replace(last, at_s=at_s, energy_j=energy_j)


def counted(known: RunCosts, newer: RunCount, sweeps: Mapping[str, OfflineSweep]) -> RunCosts:
    """Learn from the span that a new count ends.

    Another launch keeps what is known of GPUs; another layout forgets it, since a GPU then does
    other work beside its experts. GPUs that are not counted any more are forgotten.
    """
    before = known.before
    if before is None or newer.launch != before.launch or newer.layout != before.layout:
        same = before is not None and newer.layout == before.layout
        kept = {gpu: each for gpu, each in known.costs.items() if same and gpu in newer.tokens}
        return RunCosts(before=newer, costs=kept)
    if newer.at_s - before.at_s < LEAST_SPAN_S:
        return known
    costs, times, unused = {}, {}, {}
    for gpu in newer.tokens:
        found = _span(gpu, before, newer)
        cost = known.costs.get(gpu)
        if isinstance(found, CounterSpan):
            cost = learned(cost or _first(found, sweeps.get(gpu)), found)
            found = cost.dropped
            spent = _time(gpu, before, newer)
            if spent is not None and not found:
                times[gpu] = _smoothed(known.times.get(gpu), spent)
        if found:
            unused[gpu] = found
        if cost is not None:
            costs[gpu] = cost
    return RunCosts(before=newer, costs=costs, times=times, unused=unused)


def _span(gpu: str, before: RunCount, newer: RunCount) -> CounterSpan | str:
    """Give one GPU's span, or say why it has none that can be learned from."""
    first, last = before.marks.get(gpu), newer.marks.get(gpu)
    if first is None or last is None:
        return "its counter was not read around both counts"
    if gpu not in before.tokens:
        return "its expert-tokens were not counted at both ends"
    rows = newer.tokens[gpu] - before.tokens[gpu]
    unusable = _unusable(first, last, before.at_s)
    if rows <= 0 or unusable:
        return unusable or "its experts computed nothing, or their count fell"
    return CounterSpan(
        seconds=newer.at_s - before.at_s,
        energy_j=last.energy_j - first.energy_j,
        rows=float(rows),
        at=last.setting,
        simulated=last.simulated,
    )


def _unusable(first: CounterMark, last: CounterMark, began_s: float) -> str:
    """Say why two readings of one GPU cannot be compared; "" where they can."""
    if (first.dark_s, first.lit_s) != (last.dark_s, last.lit_s):
        return "a part of the span was not measured"
    if last.energy_j < first.energy_j:
        return "what was booked of it fell"
    if first.setting != last.setting or last.since_s > began_s:
        return "its clock or power limit changed within the span, or was not known all the time"
    return "a part of the span was simulated" if first.simulated != last.simulated else ""


def _first(span: CounterSpan, sweep: OfflineSweep | None) -> TokenCost:
    """Begin from a sweep; without one from what the first span's watts can be at all.

    Half of them are taken for idle, give or take that half: so wide that such a cost is known only
    once loads have varied, by which least squares tell the two apart.
    """
    if sweep is None:
        half_w, half_j = span.energy_j / span.seconds / 2, span.energy_j / span.rows / 2
        sweep = OfflineSweep(
            joules_per_token=half_j,
            idle_w=half_w,
            joules_per_token_deviation=max(half_j, 1e-12),
            idle_w_deviation=max(half_w, 1e-6),
        )
    return begin(sweep, span.at, simulated=span.simulated)


def _smoothed(before: GpuTime | None, newer: GpuTime) -> GpuTime:
    """Let single spans not decide who is late."""
    if before is None:
        return newer
    return GpuTime(
        seconds=before.seconds + NEWEST * (newer.seconds - before.seconds),
        seconds_per_token=before.seconds_per_token
        + NEWEST * (newer.seconds_per_token - before.seconds_per_token),
    )


def _time(gpu: str, before: RunCount, newer: RunCount) -> GpuTime | None:
    if gpu not in before.busy_s or gpu not in newer.busy_s:
        return None
    seconds = newer.busy_s[gpu] - before.busy_s[gpu]
    rows = newer.tokens[gpu] - before.tokens[gpu]
    if not 0 <= seconds <= newer.at_s - before.at_s or rows <= 0:
        return None
    return GpuTime(seconds=seconds, seconds_per_token=seconds / rows)
