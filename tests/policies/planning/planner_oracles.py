"""Slow ways to the best plan, built without the planner's code."""

from collections.abc import Iterator
from itertools import product

from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.problem import PlanningProblem

J_PER_KWH = 3.6e6
Label = tuple[float, float]
"""(tokens, grams)."""


def try_all(problem: PlanningProblem) -> float | None:
    """Judge every path there is; None when none is legal."""
    found = (
        evaluate(problem, path)
        for path in product(range(len(problem.options)), repeat=len(problem.seconds))
    )
    return min((each.grams for each in found if each.legal), default=None)


def exact_dp(problem: PlanningProblem) -> float | None:
    """Keep, per (slot, option), every (tokens, grams) that no other beats; plain problems only.

    A plain problem has transitions that are over within their slot and bind no longer, no caps, no
    prices, no service level and nothing embodied.
    """
    best: float | None = None
    labels: dict[int, list[Label]] = {problem.start: [(0.0, 0.0)]}
    for slot in range(len(problem.seconds)):
        reached: dict[int, list[Label]] = {}
        for origin, known in labels.items():
            for target, tokens, grams in _moves(problem, slot, origin, known):
                reached.setdefault(target, []).append((tokens, grams))
        for target, found in reached.items():
            for tokens, grams in found:
                done_g = _cut_back(problem, slot, target, tokens, grams)
                if done_g is not None and (best is None or done_g < best):
                    best = done_g
            reached[target] = _unbeaten([each for each in found if each[0] < problem.tokens])
        labels = reached
    return best


def _moves(
    problem: PlanningProblem, slot: int, origin: int, known: list[Label]
) -> Iterator[tuple[int, float, float]]:
    """Give (option, tokens, grams) after a slot."""
    g_per_j, length = problem.g_per_kwh[slot] / J_PER_KWH, problem.seconds[slot]
    for target, option in enumerate(problem.options):
        way = problem.transitions[origin][target]
        if origin != target and way is None:
            continue
        lost_s, energy_j = (way.seconds, way.energy_j) if way and origin != target else (0.0, 0.0)
        joules = energy_j + option.power_w * (length - lost_s)
        for tokens, grams in known:
            yield (
                target,
                tokens + option.tokens_per_s * (length - lost_s),
                grams + joules * g_per_j,
            )


def _cut_back(
    problem: PlanningProblem, slot: int, target: int, tokens: float, grams: float
) -> float | None:
    """Give the grams when the run stops as soon as its work is done; None: it is not."""
    option, wanted = problem.options[target], problem.tokens * (1 - 1e-9)
    if tokens < wanted or not option.tokens_per_s:
        return None
    saved_s = (tokens - wanted) / option.tokens_per_s
    return grams - saved_s * option.power_w * problem.g_per_kwh[slot] / J_PER_KWH


def _unbeaten(labels: list[Label]) -> list[Label]:
    """Drop labels with no more tokens and no fewer grams than another."""
    kept: list[Label] = []
    for tokens, grams in sorted(labels, key=lambda each: (-each[0], each[1])):
        if not kept or grams < kept[-1][1]:
            kept.append((tokens, grams))
    return kept
