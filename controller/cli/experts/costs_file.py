"""A file of counters' spans as costs and scores of GPUs: `experts costs`.

`{"gpus": [{"gpu": ..., "sweep": {...}, "spans": [{"seconds", "energy_j", "rows"}, ...]}]}`
(docs/experts.md).
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattmesh.controller.cli.experts.json_file import (
    known_keys,
    listed,
    number,
    read_object,
    text,
)
from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.costs import (
    ClockAndLimit,
    CounterSpan,
    OfflineSweep,
    TokenCost,
    begin,
    learned,
)
from wattmesh.policies.experts.scores import scored

MOST_GPUS, MOST_SPANS = 512, 100_000
MOST_DROPPED = 5
"""Sentences about spans of one GPU that are told."""

GPU_KEYS = frozenset({"gpu", "sweep", "spans", "simulated"})
SPAN_KEYS = frozenset({"seconds", "energy_j", "rows", "clock_mhz", "limit_w"})
SWEEP_KEYS = frozenset(
    {"joules_per_token", "idle_w", "joules_per_token_deviation", "idle_w_deviation"}
)


def costs_json(path: Path) -> dict[str, Any]:
    """Learn from a file, and score.

    Raises:
        InputInvalid: it cannot be read; with the reason.
    """
    given = known_keys(read_object(path), frozenset({"gpus"}), f"{path}")
    found: dict[str, tuple[TokenCost, list[str]]] = {}
    for at, each in enumerate(listed(given.get("gpus"), "gpus", MOST_GPUS)):
        one = known_keys(each, GPU_KEYS, f"GPU {at}")
        name = text(one, "gpu", f"GPU {at}")
        if name in found:
            raise InputInvalid(f"{path} names a GPU twice")
        found[name] = _learned(one, f"GPU {at}")
    costs = {name: cost for name, (cost, _) in found.items()}
    scores = scored(list(costs), costs)
    return {
        "neutral_because": scores.neutral_because,
        "gpus": [
            {
                "gpu": name,
                "joules_per_token": cost.joules_per_token,
                "deviation": math.sqrt(max(0.0, cost.variance)),
                "idle_w": cost.idle_w,
                "spans": cost.spans,
                "simulated": cost.simulated,
                "score": scores.by_gpu[name],
                "dropped": dropped[:MOST_DROPPED],
            }
            for name, (cost, dropped) in found.items()
        ],
    }


def _learned(given: dict[str, Any], what: str) -> tuple[TokenCost, list[str]]:
    asked = known_keys(given.get("sweep"), SWEEP_KEYS, f"the sweep of {what}")
    simulated = given.get("simulated", False)
    if type(simulated) is not bool:
        raise InputInvalid(f"{what}: simulated must be true or false")
    numbers = {key: number(asked, key, f"the sweep of {what}") for key in SWEEP_KEYS}
    try:
        sweep = OfflineSweep(**numbers)
    except InputInvalid as error:
        raise InputInvalid(f"the sweep of {what} cannot be: {error}") from None
    spans = [
        replace(_span(each, f"span {at} of {what}"), simulated=simulated)
        for at, each in enumerate(listed(given.get("spans"), f"spans of {what}", MOST_SPANS))
    ]
    cost = begin(sweep, spans[0].at, simulated=simulated)
    dropped = []
    for span in spans:
        cost = learned(cost, span)
        if cost.dropped:
            dropped.append(cost.dropped)
    return cost, dropped


def _span(given: Any, what: str) -> CounterSpan:
    one = known_keys(given, SPAN_KEYS, what)
    settings = {key: one.get(key) for key in ("clock_mhz", "limit_w")}
    if any(each is not None and type(each) is not int for each in settings.values()):
        raise InputInvalid(f"{what}: clock_mhz and limit_w must be whole numbers, or missing")
    return CounterSpan(
        seconds=number(one, "seconds", what),
        energy_j=number(one, "energy_j", what),
        rows=number(one, "rows", what),
        at=ClockAndLimit(**settings),
    )
