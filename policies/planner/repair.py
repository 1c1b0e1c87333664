"""From the paths of two prices to one good legal path: splice, then change single stretches.

At the price of the bound one path does too little and the next one too much. A path that follows
one of them up to a border and the other from there on lies between; so does one that spends
a stretch at another option. Candidates are ranked by estimates and then followed exactly.

Invariant: whatever is returned was judged legal by `wattmesh.policies.planner.evaluate`.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from wattmesh.policies.planner.arrays import Arrays, Bools, Floats, Ints
from wattmesh.policies.planner.evaluate import ROUNDING, evaluate
from wattmesh.policies.planner.problem import Evaluation, PlanningProblem
from wattmesh.policies.planner.route import Path, Route, steps, stretched

TRIES = 8
"""Candidates of one kind that are followed exactly."""

ROUNDS = 8
"""Times that a path is changed in one place."""

NEAR = 5e-5
"""A path is good enough when a better one can save at most this share."""

SHORT = 36
"""Slots up to which a stretch of any length is changed."""

MOST_STRETCHES = 60_000
"""Stretches that are estimated at once, about."""

CLOSE = 1e-5
"""An estimate may be too high by this share; what is estimated above is not followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPath:
    """A legal path and what it comes to."""

    path: Path
    evaluation: Evaluation


class PathJudge:
    """Follows paths, each once, and remembers the best legal one.

    Attributes:
        newest: the path followed last that does the work, legal or not.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        judged: Callable[[Path, Evaluation], Evaluation] | None = None,
    ) -> None:
        """Start with none; `judged` adds to what following a path comes to."""
        self._problem = problem
        self._judged = judged or (lambda _, found: found)
        self._seen: set[Path] = set()
        self.best: JudgedPath | None = None
        self.newest: Path = ()

    @property
    def limit_g(self) -> float:
        """Estimates above this are not worth following."""
        return self.best.evaluation.grams * (1 + CLOSE) if self.best else math.inf

    def take(self, path: Path) -> bool:
        """Follow a path; say whether it is the best by now."""
        if not path or path in self._seen:
            return False
        self._seen.add(path)
        found = self._judged(path, evaluate(self._problem, path))
        if found.ends_s is not None:
            self.newest = path
        if not found.legal:
            return False
        if self.best is not None and found.grams >= self.best.evaluation.grams * (1 - 1e-12):
            return False
        self.best = JudgedPath(
            path=_cut_after_the_work(self._problem, path, found), evaluation=found
        )
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCandidate:
    """A path not followed yet: `head` up to a slot, `tail` from there on."""

    estimate_g: float
    head: Path
    tail: Path = ()
    at: int = 0

    @property
    def path(self) -> Path:
        """The path itself."""
        return (*self.head[: self.at], *self.tail[self.at :]) if self.tail else self.head


def take_best(judge: PathJudge, candidates: Iterable[PathCandidate]) -> None:
    """Follow the candidates that promise most."""
    for each in heapq.nsmallest(TRIES, candidates, key=lambda one: one.estimate_g):
        if each.estimate_g <= judge.limit_g:
            judge.take(each.path)


def whole(arrays: Arrays, path: Path) -> list[PathCandidate]:
    """Give the path itself; nothing when it does too little."""
    route = Route(arrays, path)
    if route.tokens[-1] < arrays.tokens_wanted * (1 - ROUNDING):
        return []
    estimate_g = route.grams[-1] - route.cut_g(route.tokens[-1:] - arrays.tokens_wanted)
    return [PathCandidate(estimate_g=float(estimate_g[0]), head=path)]


def splices(arrays: Arrays, first: Path, then: Path) -> list[PathCandidate]:
    """Follow `first` up to a border and `then` from there on: the borders that promise most."""
    count = max(len(first), len(then))
    one, other = Route(arrays, stretched(first, count)), Route(arrays, stretched(then, count))
    at = np.arange(1, count)
    old = steps(arrays, at, other.path[at - 1], other.path[at])
    new = steps(arrays, at, one.path[at - 1], other.path[at])
    grams = one.grams[at] + other.grams[-1] - other.grams[at] + new.extra_g - old.extra_g
    tokens = one.tokens[at] + other.tokens[-1] - other.tokens[at] - new.lost + old.lost
    binds = np.where(new.moved, new.binds, one.bound[at])
    legal = new.possible & (~new.moved | (one.bound[at] <= at)) & (binds <= other.next_change[at])
    return [
        PathCandidate(estimate_g=estimate_g, head=one.listed, tail=other.listed, at=index + 1)
        for estimate_g, index in _ranked(arrays, np.where(legal, grams, np.inf), tokens, other)
    ]


def polish(judge: PathJudge, arrays: Arrays, bound_g: float) -> None:
    """Change one stretch of the best path after another while that is better and it is not near."""
    for _ in range(ROUNDS):
        best = judge.best
        if best is None or best.evaluation.grams <= bound_g * (1 + NEAR):
            return
        # What is trained less in a stretch may be trained after the end.
        if not _one_change(judge, arrays, stretched(best.path, arrays.slots)):
            return


def _one_change(judge: PathJudge, arrays: Arrays, path: Path) -> bool:
    """Try the most promising changes of one stretch; say whether one was better."""
    route = Route(arrays, path)
    first, until, target = stretches(len(path), len(arrays.rates))
    grams, tokens, legal = changed(arrays, route, first, until, target)
    for estimate_g, change in _ranked(arrays, np.where(legal, grams, np.inf), tokens, route):
        if estimate_g > judge.limit_g:
            return False
        stretch = (int(target[change]),) * int(until[change] - first[change])
        if judge.take((*path[: first[change]], *stretch, *path[until[change] :])):
            return True
    return False


def changed(
    arrays: Arrays, route: Route, first: Ints, until: Ints, target: Ints
) -> tuple[Floats, Floats, Bools]:
    """Estimate a path with one stretch at another option, for many stretches at once, (N,).

    Args:
        arrays: the problem.
        route: the path as it is.
        first: slots with which stretches begin.
        until: borders at which they end.
        target: options to be at.

    Returns:
        Grams and tokens of the whole path, and whether dwell and availability allow the change.
    """
    count = len(route.path)
    before = np.where(first > 0, route.path[first - 1], arrays.start)
    later = np.minimum(until, count - 1)
    goal = np.where(until < count, route.path[later], target)
    old_goal = np.where(until < count, route.path[later], route.path[until - 1])
    come, leave = steps(arrays, first, before, target), steps(arrays, later, target, goal)
    left = steps(arrays, later, route.path[until - 1], old_goal)
    grams = arrays.grams[until, target] - arrays.grams[first, target]
    tokens = arrays.tokens[until, target] - arrays.tokens[first, target]
    grams += route.grams[-1] - (route.grams[until] - route.grams[first])
    tokens += route.tokens[-1] - (route.tokens[until] - route.tokens[first])
    grams += come.extra_g + leave.extra_g - left.extra_g
    tokens -= come.lost + leave.lost - left.lost
    bound = np.where(come.moved, come.binds, route.bound[first])
    bound_after = np.where(leave.moved, leave.binds, bound)
    legal = come.possible & leave.possible & (arrays.shut[until, target] < first)
    legal &= ~come.moved | (route.bound[first] <= first)
    legal &= (~leave.moved | (bound <= until)) & (bound_after <= route.next_change[later])
    return grams, tokens, legal


def stretches(count: int, kinds: int) -> tuple[Ints, Ints, Ints]:
    """Give (first slot, border after the last, option) of all stretches that are tried.

    Every length where slots are few, else powers of two, and fewer the more slots there are.
    """
    lengths: Sequence[int] = range(1, count + 1)
    if count > SHORT:
        most = max(1, MOST_STRETCHES // (count * kinds))
        lengths = [1 << n for n in range(min(most, count.bit_length() - 1))]
    at, target = np.divmod(np.arange(count * kinds), kinds)
    pairs = [(at[at + each <= count], each, target[at + each <= count]) for each in lengths]
    return (
        np.concatenate([begin for begin, _, _ in pairs]),
        np.concatenate([begin + each for begin, each, _ in pairs]),
        np.concatenate([option for _, _, option in pairs]),
    )


def _ranked(arrays: Arrays, grams: Floats, tokens: Floats, tail: Route) -> list[tuple[float, int]]:
    """Give (estimate, index) of the few best that do the work.

    Tokens too many are cut at the end, where the path is that of `tail`.
    """
    excess = tokens - arrays.tokens_wanted
    value = np.where(excess >= -ROUNDING * arrays.tokens_wanted, grams - tail.cut_g(excess), np.inf)
    few = np.argpartition(value, TRIES)[:TRIES] if len(value) > TRIES else np.arange(len(value))
    few = few[np.isfinite(value[few])]
    return sorted((float(value[each]), int(each)) for each in few)


def _cut_after_the_work(problem: PlanningProblem, path: Path, found: Evaluation) -> Path:
    passed = 0.0
    for slot in range(len(path)):
        passed += problem.seconds[slot]
        if found.ends_s is not None and passed >= found.ends_s * (1 - 1e-12):
            return path[: slot + 1]
    return path


def static_paths(problem: PlanningProblem) -> Iterable[Path]:
    """Give the paths that go to one option at once, or stay, and remain there."""
    count = len(problem.seconds)
    return ((option,) * count for option in range(len(problem.options)))
