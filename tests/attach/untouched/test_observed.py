"""Where nothing acts on a run, nothing of ours at attach or at a boundary ends or changes it."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.attach.untouched.observed_job import STEPS
from tests.hook.daemon import FakeDaemon, Heard
from tests.hook.harness import Zygote


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a job."""

    status: int
    steps: list[Any]
    log: str
    heard: Heard


def run(zygote: Zygote, out: Path, kind: str, mode: str = "", **environment: str) -> Ran:
    """Run the job of `observed_job`; `mode`: the daemon's, "" without one."""
    out.mkdir(exist_ok=True)
    environment |= {"OUT": str(out), "KIND": kind}
    with (
        tempfile.TemporaryDirectory(prefix="wm") as short,
        FakeDaemon(Path(short) / "d.sock", out, [], mode=mode) as daemon,
    ):
        environment |= {"WATTMESH_URL": f"unix://{daemon.path}"} if mode else {}
        status = zygote.wait(
            zygote.start(2, environment, out, "tests.attach.untouched.observed_job:main")
        )
    log = "".join(path.read_text() for path in sorted(out.glob("rank-*.log")))
    lines = (out / "steps.jsonl").read_text() if (out / "steps.jsonl").exists() else ""
    return Ran(status, [json.loads(each) for each in lines.splitlines()], log, daemon.heard)


SAID = {
    "zero": "ZeroRedundancyOptimizer cannot give its state (RuntimeError: Optimizer state has not",
    "fsdp1": "is wrapped by FullyShardedDataParallel",
    "probe raises": "the probe cannot be taken (RuntimeError: the probe broke "
    f"({Path(__file__).parent / 'observed_job.py'}:",
    "probe gives nan": "the probe gave nan",
    "probe goes backward": "the probe cannot be taken (RuntimeError: element 0 of tensors does not",
    "probe trains": "the probe changed the parameter '0.weight'",
}


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*((kind, "observe") for kind in SAID), ("zero", ""), ("probe raises", "")],
)
def test_what_cannot_be_carried_is_one_sentence_and_trains_on(
    zygote: Zygote, tmp_path: Path, kind: str, mode: str
) -> None:
    """Observed by a daemon, or without one; every loss is the bare script's."""
    ran = run(zygote, tmp_path / "attached", kind, mode)
    assert ran.status == 0, ran.log
    assert SAID[kind] in ran.log
    if kind != "probe trains":
        assert ran.steps == run(zygote, tmp_path / "bare", kind, BARE="1").steps
    assert len(ran.steps) == STEPS
    if mode:
        assert SAID[kind] in ran.heard.progress[-1].trouble


@pytest.mark.parametrize("kind", SAID)
def test_where_the_daemon_acts_it_is_refused_by_name_before_the_first_step(
    zygote: Zygote, tmp_path: Path, kind: str
) -> None:
    """The twin: the same job, and the same sentence."""
    ran = run(zygote, tmp_path, kind, "act")
    assert ran.status != 0
    assert not ran.steps
    assert SAID[kind] in ran.log


@pytest.mark.parametrize(
    ("kind", "loss"),
    [("numpy", True), ("tensor", True), ("float", True), ("nan", False), ("infinite", False)],
)
def test_counts_and_losses_of_any_kind_of_number_are_taken(
    zygote: Zygote, tmp_path: Path, kind: str, loss: bool
) -> None:
    """Numpy's, a tensor's, a whole float; a loss that is not finite is told as not known."""
    ran = run(zygote, tmp_path, kind, "observe")
    assert [ran.status, len(ran.steps)] == [0, STEPS], ran.log
    assert [(each.step, each.tokens) for each in ran.heard.finishes] == [(STEPS, STEPS)]
    assert ran.heard.progress[-1].samples == 16 * ran.heard.progress[-1].step
    assert (ran.heard.progress[-1].loss is not None) == loss
    assert (ran.heard.finishes[0].loss is not None) == loss


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_what_is_no_count_is_told_and_ends_only_what_may_be_switched(
    zygote: Zygote, tmp_path: Path, mode: str
) -> None:
    """At the call, by name; of an observed run the whole part is counted."""
    ran = run(zygote, tmp_path, "half", mode)
    assert [ran.status == 0, len(ran.steps) == STEPS] == [mode == "observe"] * 2, ran.log
    assert "report: tokens = 1.5 is no whole number of 0 or more" in ran.log
    if mode == "observe":
        assert "tokens = 1.5" in ran.heard.progress[-1].trouble
        assert ran.heard.finishes[0].tokens == STEPS
        assert ran.heard.finishes[0].loss is None


@pytest.mark.parametrize("kind", ["scale", "scale not saved", "probe leaves eval"])
def test_a_probe_leaves_what_is_trained_as_it_was(
    zygote: Zygote, tmp_path: Path, kind: str
) -> None:
    """Buffers that a forward updates, saved or not, and the mode that it is in."""
    bare = run(zygote, tmp_path / "bare", kind, BARE="1")
    ran = run(zygote, tmp_path / "attached", kind, "observe")
    assert ran.status == 0, ran.log
    assert ran.steps == bare.steps
    assert not ran.heard.progress[-1].trouble


def test_a_probe_whose_buffers_are_left_changes_what_is_trained(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The sabotaged twin: what was done until November 2026."""
    bare = run(zygote, tmp_path / "bare", "scale", BARE="1")
    ran = run(zygote, tmp_path / "attached", "scale", "observe", SPOIL="buffers")
    assert [each != other for each, other in zip(ran.steps, bare.steps, strict=True)] == [
        True
    ] * STEPS
