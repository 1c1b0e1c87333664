"""A planning problem as arrays, so that the recursion adds and compares only.

Shapes: T slots, K options, M prices. `B` of the T + 1 borders between slots. The grams and tokens
of staying at an option are prefix sums over borders; a transition is a correction to them: what it
costs more, and trains less, than being at its target already.

Invariant: a transition that begins at a slot may end, and its dwell may, at any later border; both
are looked up here, so that the recursion knows no time.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.planner.problem import PlanningProblem
from wattmesh.telemetry.readings import J_PER_KWH

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_GROUPS = 6
"""Groups of transitions above which some are put together: faster, with a lower bound."""

EARLY = 1e-6
"""Seconds by which a border may come too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionArrays:
    """Transitions that are over, and that may be followed by another, at the same borders.

    Attributes:
        extra_g: (T, K, K) from, to; grams more than at the target; infinite where there is no way.
        lost: (K, K) tokens less than at the target.
        ends, binds: (T,) border at which a transition begun at a slot is over, and from which the
            next may begin; T + 1: after the last.
    """

    extra_g: Floats
    lost: Floats
    ends: Ints
    binds: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """The problem.

    Attributes:
        edges_s: (B,) time of each border.
        grams, tokens: (B, K) of being at an option from the first border on.
        ways: transitions by how long they bind.
        shut: (B, K) the last slot before a border in which an option is not available; -1: none.
        open: (T, K) whether an option is available.
        begun_g: (T,) least that is paid for a slot in which the work ends, however early in it.
    """

    start: int
    tokens_wanted: float
    edges_s: Floats
    grams: Floats
    tokens: Floats
    rates: Floats
    ways: tuple[TransitionArrays, ...]
    open: Bools
    shut: Ints
    begun_g: Floats

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.edges_s) - 1


def arrays_of(problem: PlanningProblem, *, costs: bool = True) -> Arrays:
    """Lay a problem out; without `costs` nothing emits anything, and only tokens count."""
    seconds = np.asarray(problem.seconds)
    edges_s = _summed(seconds)
    g_per_j = np.asarray(problem.g_per_kwh) / J_PER_KWH
    if not costs:
        g_per_j = np.zeros_like(g_per_j)
    power_w = np.array([each.power_w for each in problem.options])
    embodied = np.array([each.embodied_g_per_s for each in problem.options]) * costs
    rates = np.array([each.tokens_per_s for each in problem.options])
    burnt = _summed(g_per_j * seconds)
    open_, shut = _availability(problem)
    return Arrays(
        start=problem.start,
        tokens_wanted=problem.tokens,
        edges_s=edges_s,
        grams=burnt[:, None] * power_w + edges_s[:, None] * embodied,
        tokens=edges_s[:, None] * rates,
        rates=rates,
        ways=_ways(problem, edges_s, g_per_j, embodied),
        open=open_,
        shut=shut,
        begun_g=np.zeros(len(seconds)),
    )


def with_token_prices(arrays: Arrays, g_per_token: Floats) -> Arrays:
    """Give the same problem where a token trained in a slot saves grams, (T,), on top of mu."""
    seconds = np.diff(arrays.edges_s)
    gained = _summed(g_per_token * seconds)
    ways = []
    for each in arrays.ways:
        lost_s = np.divide(
            each.lost, arrays.rates, out=np.zeros_like(each.lost), where=arrays.rates > 0
        )
        missed = _integral(arrays.edges_s, gained, lost_s) * arrays.rates
        ways.append(replace(each, extra_g=each.extra_g + missed))
    return replace(arrays, grams=arrays.grams - gained[:, None] * arrays.rates, ways=tuple(ways))


def _integral(edges_s: Floats, total: Floats, seconds: Floats) -> Floats:
    """Give (T, K, K): how much `total` rises over the seconds of each transition from each slot."""
    until = np.interp(edges_s[:-1, None, None] + seconds, edges_s, total)
    return np.asarray(until - total[:-1, None, None])


def _availability(problem: PlanningProblem) -> tuple[Bools, Ints]:
    """Give which option is available when, and the last slot before each border it is not."""
    count, kinds = len(problem.seconds), len(problem.options)
    open_ = np.ones((count, kinds), dtype=np.bool_)
    if problem.power_cap_w:
        needs_w = np.array([each.needs_w for each in problem.options])
        open_ &= needs_w <= np.asarray(problem.power_cap_w)[:, None]
    shut = np.full((count + 1, kinds), -1, dtype=np.int64)
    shut[1:] = np.maximum.accumulate(np.where(open_, -1, np.arange(count)[:, None]), axis=0)
    return open_, shut


def _ways(
    problem: PlanningProblem, edges_s: Floats, g_per_j: Floats, embodied: Floats
) -> tuple[TransitionArrays, ...]:
    """Group the transitions that bind until the same borders."""
    kinds = len(problem.options)
    seconds, energy_j = np.zeros((kinds, kinds)), np.zeros((kinds, kinds))
    groups: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}
    for i, row in enumerate(problem.transitions):
        for j, way in enumerate(row):
            if i != j and way is not None:
                seconds[i, j], energy_j[i, j] = way.seconds, way.energy_j
                ends, binds = _borders(edges_s, way.seconds), _borders(edges_s, way.binds_s)
                groups.setdefault((ends.tobytes(), binds.tobytes()), []).append((i, j))
    if len(groups) > MOST_GROUPS:
        groups = _fewer(groups)
    extra_g = _extra_g(problem, edges_s, g_per_j, seconds, energy_j)
    extra_g += (np.maximum(embodied[:, None], embodied) - embodied) * seconds
    names = [each.layout for each in problem.options]
    other = np.array([[one != each for each in names] for one in names])
    extra_g[: _first_layout_change(problem, edges_s), other] = np.inf
    return tuple(
        _group(edges_s, extra_g, problem, members, seconds) for members in groups.values()
    ) or (_none(len(g_per_j), kinds),)


def _fewer(
    groups: dict[tuple[bytes, bytes], list[tuple[int, int]]],
) -> dict[tuple[bytes, bytes], list[tuple[int, int]]]:
    """Merge the groups that bind until the same borders, however long they take."""
    found: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}
    for (_, binds), members in groups.items():
        found.setdefault((b"", binds), []).extend(members)
    return found


def _extra_g(
    problem: PlanningProblem, edges_s: Floats, g_per_j: Floats, seconds: Floats, energy_j: Floats
) -> Floats:
    """Give (T, K, K): grams of a transition's joules more than being at its target as long."""
    power_w = np.array([each.power_w for each in problem.options])
    takes_time = seconds > 0
    drawn_w = np.divide(energy_j, seconds, out=np.zeros_like(seconds), where=takes_time) - power_w
    burnt = _summed(g_per_j * np.diff(edges_s))
    at_once = np.where(takes_time, 0.0, energy_j) * g_per_j[:, None, None]
    return np.asarray(_integral(edges_s, burnt, seconds) * drawn_w + at_once)


def _summed(values: Floats) -> Floats:
    """Give (B,): the sum of the values before each border."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _group(
    edges_s: Floats,
    extra_g: Floats,
    problem: PlanningProblem,
    members: list[tuple[int, int]],
    seconds: Floats,
) -> TransitionArrays:
    """Give the transitions of one group; all others have no way in it."""
    rates = np.array([each.tokens_per_s for each in problem.options])
    ours = np.zeros(seconds.shape, dtype=np.bool_)
    ours[tuple(np.array(members).T)] = True
    one = problem.transitions[members[0][0]][members[0][1]]
    return TransitionArrays(
        extra_g=np.where(ours, extra_g, np.inf),
        lost=np.where(ours, seconds * rates, 0.0),
        # The shortest of the group: a bound may be too low, never too high.
        ends=_borders(edges_s, float(seconds[ours].min())),
        binds=_borders(edges_s, one.binds_s if one else 0.0),
    )


def _none(count: int, kinds: int) -> TransitionArrays:
    """Give a group without any transition."""
    later = np.arange(1, count + 1)
    never = np.full((count, kinds, kinds), np.inf)
    return TransitionArrays(extra_g=never, lost=np.zeros((kinds, kinds)), ends=later, binds=later)


def _borders(edges_s: Floats, seconds: float) -> Ints:
    """Give the first border at least `seconds` after each slot's begin, and after the slot."""
    found = np.searchsorted(edges_s, edges_s[:-1] + seconds - EARLY)
    return np.asarray(np.maximum(found, np.arange(1, len(edges_s))), dtype=np.int64)


def _first_layout_change(problem: PlanningProblem, edges_s: Floats) -> int:
    """Give the first slot that may begin with another layout."""
    first = int(np.searchsorted(edges_s, problem.dwell_left_s - EARLY))
    layout = problem.options[problem.start].layout
    kept = [n for n, option in enumerate(problem.options) if option.layout == layout]
    for slot in range(min(first, len(problem.seconds))):
        if not any(problem.available(slot, each) for each in kept):
            return 0
    return first
