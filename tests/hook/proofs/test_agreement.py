"""Agreement after a rebuild: every sabotaged fact keeps a generation from training."""

import math
from dataclasses import replace
from typing import Any

import pytest

from wattmesh.reconfig.hook.boundary_vote import left_out
from wattmesh.reconfig.launch.generation import Generation, Outcome, Purpose
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.probe.noise import Tolerance, at_once
from wattmesh.reconfig.probe.rebuild_check import (
    Facts,
    disagreement,
    probe_difference,
    probe_problem,
)

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
FP32 = at_once(["float32"])


def problem(*ranks: Facts) -> str:
    """What keeps ranks with these facts from training."""
    facts = [each.to_json() for each in ranks]
    return disagreement(facts, RECORD) or probe_problem(facts, RECORD, FP32)


def test_equal_ranks_that_match_the_record_may_train() -> None:
    """Nothing to say; a difference that rounding explains is none."""
    near = replace(RANK, probe=2.5 * (1 + 1e-6))
    assert problem(RANK, near) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"step": 119},
        {"samples": 0},
        {"tokens": 7681},
        {"digest": "abd"},
        {"extra": "f"},
        {"random": "s"},
        {"damage": "a stream"},
        {"probe": 2.5001},
        {"probe": math.nan},
        {"probe": math.inf},
    ],
)
def test_one_rank_that_differs_is_named(change: dict[str, Any]) -> None:
    """A stale counter, other data, a lost moment, another random stream, another loss."""
    twin = replace(RANK, **change)
    words = problem(RANK, twin)
    assert "rank 2" in words
    assert next(iter(change)) in words


@pytest.mark.parametrize("change", [{"step": 100}, {"digest": "abd"}, {"probe": 2.4}])
def test_ranks_that_agree_on_what_the_record_denies_may_not_train(change: dict[str, Any]) -> None:
    """All ranks wrong together is wrong all the same."""
    twin = replace(RANK, **change)
    assert problem(twin, twin) != ""


def test_a_probe_is_held_against_the_one_before_or_against_its_peers() -> None:
    """And what is not a number is infinitely far off."""
    facts = [replace(RANK, probe=each).to_json() for each in (2.0, 2.1)]
    assert probe_difference(facts, RECORD) == pytest.approx(0.2)
    assert probe_difference(facts, replace(RECORD, probe=None)) == pytest.approx(0.05)
    assert probe_problem(facts, RECORD, Tolerance(0.21, "so")) == ""
    assert "explained by so" in probe_problem(facts, RECORD, Tolerance(0.19, "so"))
    lost = [replace(RANK, probe=math.nan).to_json()]
    assert probe_difference(lost, RECORD) == math.inf
    assert probe_difference(lost, replace(RECORD, probe=math.nan)) == math.inf


def test_a_boundary_that_was_left_out_still_ends_a_run_that_is_done() -> None:
    """Tokens of any rank, or any rank's wish: a failure of ours keeps nobody from the end."""
    going = {"finish": False, "stop": "", "tokens": 99}
    assert left_out([going, going], 100).outcome is None
    assert left_out([going, {**going, "tokens": 100}], 100).outcome is Outcome.DONE
    assert left_out([going, {**going, "finish": True}], 0).outcome is Outcome.DONE
    stopped = left_out([going, {**going, "stop": "SIGTERM"}], 0)
    assert (stopped.outcome, stopped.detail) == (Outcome.STOPPED, "SIGTERM")
