"""What benchmarks.equivalence trains: layouts, walks, arms and controls. Pure.

Invariant: an arm is a function of its name and seed, so that a piece of it can be done any day.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.equivalence.controls import HARM
from benchmarks.equivalence.job import Arm
from examples.pretrain.options import parse_layout
from wattmesh.reconfig.equivalence.script import every_ordered_pair, random_walk

WALKED = (
    "",
    "dp_shard=4",
    "dp_replicate=2,dp_shard=2",
    "tp=2",
    "cp=2,ep=2",
    "dp_shard=2,ep=2",
    "pp=2",
    "pp=4,schedule=GPipe",
    "pp=2,tp=2,schedule=Interleaved1F1B",
    "dp_shard=2,cp=2,tp=2,ep=4",
    "pp=2,dp_shard=2,cp=2,ep=2,schedule=ZBVZeroBubble",
    "pp=2,dp_shard=2,cp=2,tp=2,ep=2",
)
"""Twelve layouts: each dimension above 1, four schedules, all five at once on 16 ranks."""

DENSE = (
    "",
    "dp_shard=2",
    "tp=2",
    "pp=2",
    "cp=2",
    "dp_shard=2,tp=2",
    "pp=2,dp_shard=2",
    "cp=2,tp=2",
)
TRIED = {
    "dense": ("", "dp_shard=2", "dp_replicate=2", "pp=2", "cp=2", "tp=2", "pp=2,dp_shard=2"),
    "moe": (
        "",
        "dp_shard=2,ep=2",
        "dp_replicate=2",
        "pp=2",
        "cp=2,ep=2",
        "tp=2,ep=2",
        "dp_shard=4",
    ),
}
"""Mostly two ranks: a thousand steps, five seeds, two cores."""

ONE_RANK = ""
OTHER_ORDER = "micro_batch=1"
"""One rank that adds the same microbatches up in another order."""

EVERY = 2
"""Steps in each layout of the fp64 walk."""

FP32_STEPS, FP32_SWITCHES, FP32_EVERY = 1020, 50, 20
TRIAL_STEPS, TRIAL_SWITCHES, TRIAL_EVERY = 1000, 30, 20
SEEDS = {"dense": 20, "moe": 5}
"""Final losses differ by about 1e-7, over two decades from seed to seed: with five seeds the ratio
of two medians is uncertain by a factor of four, with twenty by about two."""
HELD_TOKENS = 1 << 16
CONTROL_FROM, CONTROL_TO = "dp_shard=2,ep=2", "dp_shard=2,tp=2,ep=2"


_FP64: dict[str, Any] = {"preset": "tiny-moe", "dtype": "fp64", "boundary_every": EVERY}


def fp64_arms(folder: Path, *, layouts: Sequence[str] = WALKED) -> dict[str, Arm]:
    """One rank that never switches, and the walk over every ordered pair of layouts."""
    walk = every_ordered_pair(len(layouts))
    steps = EVERY * len(walk)
    states = folder / "fp64-states"
    common: dict[str, Any] = {**_FP64, "steps": steps}
    return {
        "one rank": Arm(
            folder=str(folder / "fp64-one-rank"), states=str(states), keep_states=EVERY, **common
        ),
        "walk": Arm(
            folder=str(folder / "fp64-walk"),
            layouts=list(layouts),
            turns=_turns(walk, EVERY),
            states=str(states),
            compare_states=True,
            **common,
        ),
    }


def control_arms(folder: Path) -> dict[str, Arm]:
    """An honest switch; each harm behind the session's back; all of them inside its load."""
    pair = [CONTROL_FROM, CONTROL_TO]
    there = [(EVERY, 1)]
    arms = {
        "none": Arm(
            folder=str(folder / "control-none"), layouts=pair, turns=there, steps=6, **_FP64
        )
    }
    for number, harm in enumerate(HARM):
        arms[harm] = Arm(
            folder=str(folder / f"control-{number}"),
            layouts=pair,
            turns=there,
            steps=6,
            meddle={str(EVERY): harm},
            **_FP64,
        )
    steps = [EVERY * (number + 1) for number in range(len(HARM))]
    arms["inside the load"] = Arm(
        folder=str(folder / "control-inside"),
        layouts=pair,
        turns=[(step, 1) for step in steps],
        steps=steps[-1] + EVERY,
        at_load={str(step): harm for step, harm in zip(steps, HARM, strict=True)},
        **_FP64,
    )
    return arms


def fp32_arms(folder: Path) -> dict[str, Arm]:
    """One rank, the same adding up in another order, and 50 random switches."""
    walk = random_walk(len(DENSE), FP32_SWITCHES, seed=1)
    common: dict[str, Any] = {
        "preset": "tiny",
        "dtype": "fp32",
        "steps": FP32_STEPS,
        "boundary_every": FP32_EVERY,
    }
    return {
        "one rank": Arm(folder=str(folder / "fp32-one-rank"), layouts=[ONE_RANK], **common),
        "another order": Arm(folder=str(folder / "fp32-order"), layouts=[OTHER_ORDER], **common),
        "50 switches": Arm(
            folder=str(folder / "fp32-switched"),
            layouts=list(DENSE),
            turns=_turns(walk, FP32_EVERY),
            **common,
        ),
    }


def trial_arms(folder: Path, *, kind: str, seed: int) -> dict[str, Arm]:
    """One seed: left alone, added up in another order, and with 30 switches back to one rank.

    The switched arm ends on one rank, so that its last state is judged there.
    """
    layouts = list(TRIED[kind])
    draw = random.Random(1000 + seed)
    steps = range(TRIAL_EVERY, TRIAL_STEPS, TRIAL_EVERY)
    at = sorted(draw.sample(steps, TRIAL_SWITCHES))
    walk = random_walk(len(layouts), TRIAL_SWITCHES, seed=seed)[1:]
    for again in range(1, 1000):
        if walk[-1] == 0:
            break
        walk = random_walk(len(layouts), TRIAL_SWITCHES, seed=seed + 1000 * again)[1:]
    common: dict[str, Any] = {
        "preset": "tiny" if kind == "dense" else "tiny-moe",
        "dtype": "fp32",
        "steps": TRIAL_STEPS,
        "boundary_every": TRIAL_EVERY,
        "seed": seed,
        "held_tokens": HELD_TOKENS,
    }
    where = folder / f"{kind}-seed-{seed}"
    return {
        "one rank": Arm(folder=f"{where}-one-rank", layouts=[ONE_RANK], **common),
        "another order": Arm(folder=f"{where}-order", layouts=[OTHER_ORDER], **common),
        "30 switches": Arm(
            folder=f"{where}-switched",
            layouts=layouts,
            turns=list(zip(at, walk, strict=True)),
            **common,
        ),
    }


def _turns(walk: Sequence[int], every: int) -> list[tuple[int, int]]:
    """The steps at which a walk goes on, and where to; it begins in its first place."""
    return [(every * number, place) for number, place in enumerate(walk) if number]


def covered(layouts: Sequence[str]) -> dict[str, int]:
    """Give the largest degree of every dimension among some layouts."""
    parsed = [parse_layout(each) for each in layouts]
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
    return {name: max(getattr(each, name) for each in parsed) for name in names}
