"""No failure of ours at a boundary ends a training: every rank leaves it, and trains on."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.hook.daemon import FakeDaemon
from tests.hook.harness import Run, Zygote, short, worst_difference
from tests.hook.switches.breaking import GUARD, HANG, LISTEN_AT
from tests.hook.tiny import Fault
from wattmesh.errors import (
    CallHuman,
    CheckpointDamaged,
    Diverged,
    Fenced,
    Refused,
    WattmeshError,
)
from wattmesh.reconfig.launch.group import RankFailed
from wattmesh.reconfig.launch.guard import all_or_none, ending

Undisturbed = Callable[[int, str], dict[int, float]]
Lines = list[dict[str, Any]]

MANY = 100_000
PATIENCE_S = 400.0
SEEN = {
    "boundary.Boundary._facts",
    "boundary_vote.conclude",
    "tensors.name_all",
    "digest.pieces_of",
    "digest.combine",
    "rebuild_check.require_one",
    "extra_state.own",
    "direct.own_share",
    "direct.write",
    "merge.index_of",
    "folder.seal",
    "checkpoint.publish",
    "checkpoint.prune",
    "group.gather",
    "group._exchange",
}
"""Some of every stage of a boundary."""


def breaking(zygote: Zygote, folder: Path, socket_path: Path, **environment: str) -> Run:
    """A run of two ranks that saves at every step."""
    run = Run(zygote, folder, 2, steps=MANY, boundary_every=1)
    run.with_daemon(socket_path).environment.update(environment)
    run.job = "tests.hook.switches.breaking:main"
    return run


def boundaries(run: Run, rank: int) -> Lines:
    """What a rank wrote of its boundaries."""
    text = (run.out / f"boundaries-{rank}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_a_failure_in_any_function_of_a_boundary_ends_no_training(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """In observe mode, on one rank at a time: all train on together, and one sentence tells."""
    run = breaking(zygote, tmp_path, socket_path)
    with FakeDaemon(socket_path, run.out, [], mode="observe") as daemon:
        assert run.once(PATIENCE_S) == 0, run.log()
    told = [boundaries(run, rank) for rank in range(2)]
    broken = {line["broken"]: line for lines in told for line in lines if line["broken"]}
    print(f"\n{len(broken)} functions broken, of {len(told[0])} boundaries")
    assert broken.keys() > SEEN
    for lines in zip(*told, strict=True):
        assert lines[0]["trouble"] == lines[1]["trouble"], lines
        failed = any(line["broken"] for line in lines)
        # What fails after it was published leaves a checkpoint all the same.
        assert bool(lines[0]["trouble"]) or not failed or lines[0]["published"], lines
        assert bool(lines[0]["trouble"]) <= failed, lines
        assert lines[0]["staged"] == 0, lines
    assert not broken["direct.write"]["published"]
    steps = len(told[0])
    assert [line["step"] for line in run.lines()] == list(range(1, steps + 1))
    first = {step: loss for step, loss in run.losses().items() if step <= 40}
    assert worst_difference(first, undisturbed(40, "float32")) == 0.0
    assert told[0][-1]["trouble"] == ""
    assert told[0][-1]["published"]
    heard = {each.trouble for each in daemon.heard.progress}
    assert any("No space left on device" in each for each in heard)


def test_without_the_guard_the_first_failure_ends_it(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """The sabotaged twin: the same job, the same failures."""
    run = breaking(zygote, tmp_path, socket_path, **{GUARD: "1"})
    with FakeDaemon(socket_path, run.out, [], mode="observe"):
        assert run.once() != 0
    assert max(line["step"] for line in run.lines()) <= LISTEN_AT + 4


@pytest.mark.parametrize("mode", ["act", "observe"])
def test_a_disk_that_hangs_ends_only_a_run_that_may_be_switched(
    zygote: Zygote, tmp_path: Path, socket_path: Path, mode: str
) -> None:
    """Observed, the save is given up and those after it wait for nothing; else, the deadline."""
    run = breaking(zygote, tmp_path, socket_path, **{HANG: "1"})
    run.change(deadlines=short("save"))
    with FakeDaemon(socket_path, run.out, [], mode=mode):
        status = run.once(PATIENCE_S)
    assert (status == 0) == (mode == "observe"), run.log()
    if mode == "observe":
        _, hung, after, _ = boundaries(run, 0)[1:5]
        assert "rank 1 of the group could not write its part (TimeoutError: the" in hung["trouble"]
        assert "the disk still does not answer an earlier call" in after["trouble"]
        assert not hung["published"]


@pytest.mark.parametrize("mode", ["act", "observe"])
def test_ranks_that_drifted_apart_end_only_a_run_that_may_be_switched(
    zygote: Zygote, tmp_path: Path, socket_path: Path, mode: str
) -> None:
    """Observed, it is told and trains on; else it goes back to what was verified last."""
    fault = Fault(rank=1, at="train", what="drift", after_step=7)
    run = breaking(zygote, tmp_path, socket_path)
    run.job = "tests.hook.tiny:main"
    run.change(steps=15, boundary_every=5, layout={"tp": 2}, fault=fault)
    with FakeDaemon(socket_path, run.out, [], mode=mode) as daemon:
        status = run.once()
    assert (status == 0) == (mode == "observe"), run.log()
    assert "ranks hold different values under the name 'model.scale'" in run.log()
    told = [each.trouble for each in daemon.heard.progress if each.trouble]
    assert bool(told) == (mode == "observe")


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kind", [Diverged, CallHuman, CheckpointDamaged, Fenced, Refused])
def test_what_ends_a_launch_is_known_by_its_kind_on_every_rank(kind: type[WattmeshError]) -> None:
    """Where it was raised as it was, elsewhere as its kind; a failure of ours is no such thing."""
    with pytest.raises(RankFailed) as here:
        all_or_none(partial(fail, kind("two launches")))
    assert isinstance(ending(here.value), kind)
    there = ending(RankFailed(str(here.value), here.value.kind))
    assert there is not None
    assert isinstance(there, CallHuman if kind is CheckpointDamaged else kind)
    with pytest.raises(RankFailed, match=r"MemoryError: .* \[group rank 0\]") as ours:
        all_or_none(partial(fail, MemoryError("no memory")))
    assert ending(ours.value) is None


def fail(error: Exception) -> None:
    """Raise it."""
    raise error
