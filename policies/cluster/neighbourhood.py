"""A joint plan made better a few runs at a time, while the others stay. Pure.

First come the runs that pay most above what they would have to at the prices of the whole: they
are where the whole plan lost most against its bound.

Invariant: the plan never gets worse, and keeps the limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from wattmesh.policies.cluster.joint import JointPlan, plan_together
from wattmesh.policies.cluster.pricing import PlanColumn
from wattmesh.policies.cluster.share import RunShare
from wattmesh.policies.planner.arrays import Floats

AT_ONCE = 3
"""Runs that are planned anew together."""

ROUNDS = 6
"""Most times that they are asked."""

TRIES = 12
"""Most groups that are tried after the last one that was better."""

WORTH = 1e-5
"""Share of its grams by which a group has to be better."""


def improved(
    shares: Sequence[RunShare], limit: Floats, plan: JointPlan, *, tries: int = TRIES
) -> JointPlan:
    """Plan groups of runs anew, until none of those that promise most is better."""
    if len(shares) <= AT_ONCE:
        return plan
    columns = dict(plan.columns)
    by_name = {each.name: each for each in shares}
    tried: set[tuple[str, ...]] = set()
    failed = 0
    while failed < tries:
        group = _next(columns, by_name, plan, tried)
        if group is None:
            break
        tried.add(group)
        mine = {name: columns[name] for name in group}
        others = [each.spread(len(limit)) for name, each in columns.items() if name not in group]
        room = np.maximum(0.0, limit - sum(others, start=np.zeros_like(limit)))
        found = plan_together([by_name[name] for name in group], room, known=[mine], rounds=ROUNDS)
        before_g = sum(each.grams for each in mine.values())
        if isinstance(found, JointPlan) and found.grams < before_g * (1 - WORTH):
            columns |= found.columns
            tried = {each for each in tried if not set(each) & set(group)}
            failed = 0
        else:
            failed += 1
    grams = sum(each.grams for each in columns.values())
    return replace(plan, columns=columns, grams=grams, bound_g=min(plan.bound_g, grams))


def _next(
    columns: Mapping[str, PlanColumn],
    shares: Mapping[str, RunShare],
    plan: JointPlan,
    tried: set[tuple[str, ...]],
) -> tuple[str, ...] | None:
    """Give the group not tried yet that pays most above its bounds; None when all were."""
    above = {name: _paid_g(each, plan) - plan.own_bound_g[name] for name, each in columns.items()}
    groups = (tuple(sorted(each)) for each in combinations(columns, AT_ONCE))
    left = [each for each in groups if each not in tried and _meet(each, shares)]
    return max(left, key=lambda each: sum(above[name] for name in each), default=None)


def _meet(group: Sequence[str], shares: Mapping[str, RunShare]) -> bool:
    """Say whether the times of each of these runs overlap with another's."""
    spans = [shares[name].slots for name in group]
    return all(
        any(one is not two and one.start < two.stop and two.start < one.stop for two in spans)
        for one in spans
    )


def _paid_g(column: PlanColumn, plan: JointPlan) -> float:
    prices = plan.prices[column.first : column.first + len(column.takes)]
    return column.grams + float(np.sum(prices * column.takes))
