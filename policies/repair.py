"""From the paths of two prices to one good legal path: splice, then change single slots.

At the price of the bound one path does too little and the next one too much. A path that follows
one of them up to a border and the other from there on lies between; so does one that leaves its
slot for another option. Candidates are ranked by estimates and then followed exactly.

Invariant: whatever is returned was judged legal by `wattmesh.policies.evaluate`.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from wattmesh.policies.arrays import Arrays, Floats, Ints
from wattmesh.policies.evaluate import evaluate
from wattmesh.policies.problem import Evaluation, Problem

Path = tuple[int, ...]

TRIES = 8
"""Candidates of one kind that are followed exactly."""

ROUNDS = 8
"""Times that a path is changed in one place."""

NEAR = 5e-5
"""A path is good enough when a better one can save at most this share."""

CLOSE = 1e-5
"""An estimate may be too high by this share; what is estimated above is not followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A legal path and what it comes to."""

    path: Path
    evaluation: Evaluation

    @property
    def charged_g(self) -> float:
        """What the planner minimises."""
        return self.evaluation.charged_g


class Judge:
    """Follows paths, each once, and remembers the best legal one.

    Attributes:
        newest: the path followed last that does the work, legal or not.
    """

    def __init__(self, problem: Problem) -> None:
        """Start with none."""
        self._problem = problem
        self._seen: set[Path] = set()
        self.best: Judged | None = None
        self.newest: Path = ()

    @property
    def limit_g(self) -> float:
        """Estimates above this are not worth following."""
        return self.best.charged_g * (1 + CLOSE) if self.best else math.inf

    def take(self, path: Path) -> bool:
        """Follow a path; say whether it is the best by now."""
        if not path or path in self._seen:
            return False
        self._seen.add(path)
        found = evaluate(self._problem, path)
        if found.ends_s is not None:
            self.newest = path
        if not found.legal:
            return False
        if self.best is not None and found.charged_g >= self.best.charged_g * (1 - 1e-12):
            return False
        self.best = Judged(path=_cut(self._problem, path, found), evaluation=found)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A path not followed yet: `head` up to a slot, `tail` from there on."""

    estimate_g: float
    head: Path
    tail: Path = ()
    at: int = 0

    @property
    def path(self) -> Path:
        """The path itself."""
        return (*self.head[: self.at], *self.tail[self.at :]) if self.tail else self.head


def take_best(judge: Judge, candidates: Iterable[Candidate], most: int = TRIES) -> None:
    """Follow the candidates that promise most."""
    for each in heapq.nsmallest(most, candidates, key=lambda one: one.estimate_g):
        if each.estimate_g <= judge.limit_g:
            judge.take(each.path)


def whole(arrays: Arrays, path: Path) -> list[Candidate]:
    """Give the path itself; nothing when it does too little."""
    sums = _Sums(arrays, path)
    if sums.tokens[-1] < arrays.wanted * (1 - 1e-9):
        return []
    estimate_g = np.interp(arrays.wanted, np.maximum.accumulate(sums.tokens), sums.grams)
    return [Candidate(estimate_g=float(estimate_g), head=path)]


def splices(arrays: Arrays, first: Path, then: Path) -> list[Candidate]:
    """Follow `first` up to a border and `then` from there on: the borders that promise most."""
    count = max(len(first), len(then))
    one, other = _Sums(arrays, _stretched(first, count)), _Sums(arrays, _stretched(then, count))
    at = np.arange(1, count)
    grams = one.grams[at] + other.grams[-1] - other.grams[at]
    tokens = one.tokens[at] + other.tokens[-1] - other.tokens[at]
    extra_g, lost = _transition(arrays, at, one.path[at - 1], other.path[at])
    old_g, old_lost = _transition(arrays, at, other.path[at - 1], other.path[at])
    grams, tokens = grams + extra_g - old_g, tokens - lost + old_lost
    return [
        Candidate(estimate_g=estimate_g, head=one.listed, tail=other.listed, at=index + 1)
        for estimate_g, index in _ranked(arrays, grams, tokens, other.tail_g)
    ]


def polish(judge: Judge, arrays: Arrays, bound_g: float) -> None:
    """Change the best path in one slot after another while that is better and it is not near."""
    for _ in range(ROUNDS):
        best = judge.best
        if best is None or best.charged_g <= bound_g * (1 + NEAR):
            return
        if not _one_change(judge, arrays, best.path):
            return


def _one_change(judge: Judge, arrays: Arrays, path: Path) -> bool:
    """Try the most promising changes of one slot; say whether one was better."""
    sums, kinds = _Sums(arrays, path), len(arrays.rates)
    at, target = np.divmod(np.arange(len(path) * kinds), kinds)
    now = sums.path[at]
    step_g, step_tokens = np.diff(arrays.grams, axis=0), np.diff(arrays.tokens, axis=0)
    grams = sums.grams[-1] + step_g[at, target] - step_g[at, now]
    tokens = sums.tokens[-1] + step_tokens[at, target] - step_tokens[at, now]
    before = np.concatenate([[arrays.start], sums.path[:-1]])[at]
    later = np.minimum(at + 1, len(path) - 1)
    after = np.where(at + 1 < len(path), sums.path[later], target)
    after_now = np.where(at + 1 < len(path), sums.path[later], now)
    for sign, slot, origin, goal in (
        (1, at, before, target),
        (1, later, target, after),
        (-1, at, before, now),
        (-1, later, now, after_now),
    ):
        extra_g, lost = _transition(arrays, slot, origin, goal)
        grams, tokens = grams + sign * extra_g, tokens - sign * lost
    grams = np.where((target == now) | ~arrays.open[at, target], np.inf, grams)
    for estimate_g, change in _ranked(arrays, grams, tokens, sums.tail_g):
        if estimate_g > judge.limit_g:
            return False
        slot = int(at[change])
        if judge.take((*path[:slot], int(target[change]), *path[slot + 1 :])):
            return True
    return False


def _ranked(
    arrays: Arrays, grams: Floats, tokens: Floats, tail_g: float
) -> list[tuple[float, int]]:
    """Give (estimate, index) of the few best that do the work.

    Tokens too many are cut at the end.
    """
    enough = tokens >= arrays.wanted * (1 - 1e-9)
    value = np.where(enough, grams - tail_g * (tokens - arrays.wanted), np.inf)
    few = np.argpartition(value, TRIES)[:TRIES] if len(value) > TRIES else np.arange(len(value))
    few = few[np.isfinite(value[few])]
    return sorted((float(value[each]), int(each)) for each in few)


def _transition(arrays: Arrays, slot: Ints, origin: Ints, target: Ints) -> tuple[Floats, Floats]:
    """Give grams more and tokens less of going from `origin` to `target`; 0 for staying."""
    extra_g = np.where(origin == target, 0.0, np.inf)
    lost = np.zeros(len(slot))
    for ways in arrays.ways:
        there = ways.extra_g[slot, origin, target]
        known = np.isfinite(there)
        extra_g = np.where(known, there, extra_g)
        lost = np.where(known, ways.lost[origin, target], lost)
    # A path that breaks a rule here is not estimated but found out when it is followed.
    return np.where(np.isfinite(extra_g), extra_g, 0.0), lost


class _Sums:
    """Grams and tokens of a path up to each border, as the recursion counts them."""

    def __init__(self, arrays: Arrays, path: Path) -> None:
        """Add up."""
        self.listed = path
        self.path = np.array(path, dtype=np.int64)
        at = np.arange(len(path))
        before = np.concatenate([[arrays.start], self.path[:-1]])
        extra_g, lost = _transition(arrays, at, before, self.path)
        grams = np.diff(arrays.grams, axis=0)[at, self.path] + extra_g
        tokens = np.diff(arrays.tokens, axis=0)[at, self.path] - lost
        self.grams = np.concatenate([[0.0], np.cumsum(grams)])
        self.tokens = np.concatenate([[0.0], np.cumsum(tokens)])
        worked = tokens[tokens > 0]
        self.tail_g = float(grams[tokens > 0][-1] / worked[-1]) if len(worked) else 0.0


def _stretched(path: Path, count: int) -> Path:
    """Stay at the last option until `count` slots are full."""
    return path + (path[-1],) * (count - len(path))


def _cut(problem: Problem, path: Path, found: Evaluation) -> Path:
    """Drop the slots after the one in which the work ends."""
    passed = 0.0
    for slot in range(len(path)):
        passed += problem.seconds[slot]
        if found.ends_s is not None and passed >= found.ends_s * (1 - 1e-12):
            return path[: slot + 1]
    return path


def static_paths(problem: Problem) -> Iterable[Path]:
    """Give the paths that go to one option at once, or stay, and remain there."""
    count = len(problem.seconds)
    return ((option,) * count for option in range(len(problem.options)))
