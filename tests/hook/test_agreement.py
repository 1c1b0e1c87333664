"""Agreement after a rebuild: every sabotaged fact keeps a generation from training."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from wattmesh.reconfig.agreement import Facts, disagreement, random_hash, seed_at, tolerance
from wattmesh.reconfig.generation import Generation, Purpose
from wattmesh.reconfig.layout import Layout

RECORD = Generation(
    number=2,
    purpose=Purpose.SWITCH,
    run="r",
    incarnation="i",
    attempt=1,
    layout=Layout(dp_shard=2),
    ranks=(0, 2),
    step=120,
    samples=960,
    tokens=7680,
    digest="abc",
    probe=2.5,
)
RANK = Facts(step=120, samples=960, tokens=7680, digest="abc", extra="e", random="r", probe=2.5)
FP32 = tolerance([torch.float32])


def test_equal_ranks_that_match_the_record_may_train() -> None:
    """Nothing to say; a difference that rounding explains is none."""
    near = replace(RANK, probe=2.5 * (1 + 1e-6))
    assert disagreement([RANK.to_json(), near.to_json()], RECORD, FP32) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"step": 119},
        {"samples": 0},
        {"tokens": 7681},
        {"digest": "abd"},
        {"extra": "f"},
        {"random": "s"},
        {"probe": 2.5001},
        {"probe": math.nan},
        {"probe": math.inf},
    ],
)
def test_one_rank_that_differs_is_named(change: dict[str, Any]) -> None:
    """A stale counter, other data, a lost moment, another random stream, another loss."""
    twin = replace(RANK, **change)
    words = disagreement([RANK.to_json(), twin.to_json()], RECORD, FP32)
    assert "rank 2" in words
    assert next(iter(change)) in words


@pytest.mark.parametrize("change", [{"step": 100}, {"digest": "abd"}, {"probe": 2.4}])
def test_ranks_that_agree_on_what_the_record_denies_may_not_train(change: dict[str, Any]) -> None:
    """All ranks wrong together is wrong all the same."""
    twin = replace(RANK, **change).to_json()
    assert disagreement([twin, twin], RECORD, FP32) != ""


def test_fp64_allows_less_than_fp32() -> None:
    """The coarsest parameter dtype decides."""
    assert tolerance([torch.float64]) == 1e-12
    assert pytest.approx(4e-6) == FP32
    assert tolerance([torch.float64, torch.float32]) == FP32


def test_the_random_stream_is_a_function_of_the_position() -> None:
    """Equal seed and step give equal streams; another step gives another."""
    seed_at(1, 20)
    first, hashed = torch.rand(3), random_hash()
    torch.rand(100)
    seed_at(1, 20)
    again = random_hash()
    assert torch.equal(torch.rand(3), first)
    seed_at(1, 21)
    assert random_hash() not in (hashed, again)
