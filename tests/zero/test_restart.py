"""A real DeepSpeed job that is switched by restart trains as one that was never touched."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.hook.harness import worst_difference

PATIENCE_S = 600
FP32 = 1e-5


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every launch of `job` told."""
    folder = tmp_path_factory.mktemp("zero")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.zero.job", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found: dict[str, Any] = json.loads((folder / "said.json").read_text())
    return found


def losses(said: dict[str, Any], *launches: str) -> dict[int, float]:
    """Loss by step over launches; what a later one trained again counts."""
    ranks = (said[name]["ranks"][0]["losses"] for name in launches)
    return {int(step): loss for each in ranks for step, loss in each.items()}


def test_any_ranks_and_stage_load_any_other(said: dict[str, Any]) -> None:
    """ZeRO-2 on two ranks, ZeRO-3 on one, ZeRO-1 on two: the losses of one rank left alone."""
    alone = losses(said, "alone")
    assert set(alone) == set(range(1, 10))
    assert worst_difference(losses(said, "first", "second", "third"), alone) <= FP32


def test_a_dropped_moment_is_seen(said: dict[str, Any]) -> None:
    """Sabotaged twin: with one moment zeroed behind its back, the same comparison fails."""
    assert said["moment dropped"]["ranks"][0]["client"] == {"samples": 24}
    switched = losses(said, "first", "second", "moment dropped")
    assert worst_difference(switched, losses(said, "alone")) > 10 * FP32


def test_every_rank_leaves_when_one_asks(said: dict[str, Any]) -> None:
    """The wish of the last rank ends the launch in band, and the outcome tells a supervisor so."""
    first = said["first"]
    assert [rank["left"] for rank in first["ranks"]] == [True, True]
    assert first["outcome"] == {"outcome": "restart", "sentence": "another shape", "step": 3}
    assert said["third"]["outcome"]["outcome"] == "done"


def test_the_position_goes_along(said: dict[str, Any]) -> None:
    """What the script kept comes back on every rank; the first launch finds nothing."""
    assert said["first"]["ranks"][1]["client"] is None
    assert said["second"]["ranks"][0]["client"] == {"samples": 12}
    assert [rank["client"] for rank in said["third"]["ranks"]] == [{"samples": 24}] * 2


def test_old_checkpoints_go_and_what_was_resumed_stays(said: dict[str, Any]) -> None:
    """Two are kept, and the one that a launch began from."""
    steps = {name: [int(each[-1]) for each in said[name]["kept"]] for name in ("first", "third")}
    assert steps == {"first": [2, 3], "third": [6, 8, 9]}


def test_a_damaged_checkpoint_is_passed_over(said: dict[str, Any]) -> None:
    """One flipped bit in the newest: the one before it is resumed, the losses are the same.

    A stop that was asked for by a file ends the launch in band as well.
    """
    damaged = said["damaged newest"]
    assert damaged["ranks"][0]["client"] == {"samples": 20}
    assert damaged["outcome"]["outcome"] == "stopped"
    alone = losses(said, "alone")
    again = losses(said, "damaged newest")
    assert worst_difference(again, {6: alone[6]}) <= FP32


def test_nothing_is_trained_from_damage(said: dict[str, Any]) -> None:
    """With every checkpoint damaged each rank is told so, and none begins anew."""
    told = [rank["error"] for rank in said["all damaged"]["ranks"]]
    assert len(told) == 2
    for each in told:
        assert each.startswith("CheckpointDamaged: none of the 3 checkpoints in")


def test_what_cannot_be_moved_is_refused(said: dict[str, Any]) -> None:
    """Each kind of engine is refused by a sentence of its own; a plain one is not."""
    words = {
        "good": "",
        "stage 0": "ZeRO stage 0",
        "groups": "ZeRO-3 loads one parameter group, this optimizer has 2",
        "not universal": "load_universal",
        "separate bf16": "BF16_Optimizer is not supported",
        "zero_offload_optimizer": "offloaded parameters and optimizer states",
        "pipeline_parallelism": "pipeline module",
        "has_moe_layers": "mixture of experts",
        "mp_world_size": "tensor parallelism 2",
    }
    assert set(said["refusals"]) == set(words)
    for name, part in words.items():
        assert part in said["refusals"][name]
    assert said["refusals"]["good"] == ""


def test_the_documented_lines_leave_and_go_on(said: dict[str, Any]) -> None:
    """The page's block leaves at its first save step, and its next launch ends the run."""
    told = said["documented"]
    assert told["left early at"] == 2
    assert told["kept"] == [{"samples": 0}, {"samples": 8}]
    assert (told["left"], told["reached"]) == ("finished", 6)
