"""Slurm's controller killed at each step of what the queue asks of it: one job is held, or none."""

import shutil
import signal
from contextlib import suppress
from pathlib import Path

from tests.daemon.waiting import wait_for
from tests.slurm.cluster import Cluster
from tests.slurm.test_queue import HOUR, RUN, Held, following
from wattmesh.errors import SourceUnavailable
from wattmesh.integrations.slurm.slurm_queue import SlurmQueue
from wattmesh.reconfig.launcher.contract import HeldState

HOLDING = (6, 7)
"""Calls of a hold: GPUs, script, options, could it start?, look, submit, look."""
WITHDRAWING = (2,)
"""Calls of a withdrawal: look, cancel."""


def dies_at(queue: SlurmQueue, slurm: Cluster, step: int) -> None:
    """Let the controller be killed as a call of the queue is about to be made.

    It has saved what it knows by then, as it does within seconds.
    """
    client, calls = queue._client, 0
    whole = client._run

    def call(*words: str, **named: object) -> tuple[str, str]:
        nonlocal calls
        calls += 1
        if calls == step:
            slurm.kill_controller()
        return whole(*words, **named)  # type: ignore[arg-type]

    client._run = call  # type: ignore[method-assign]


def back(slurm: Cluster) -> None:
    """Start the controller again, if it is not there."""
    if "slurmctld" not in slurm.daemons:
        slurm.start("slurmctld")
    wait_for(lambda: answers(slurm), "the controller")


def answers(slurm: Cluster) -> bool:
    """Whether the controller answers, and has heard of every node."""
    try:
        told = slurm.ask("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T")
        return set(told.split()) <= {"idle", "mixed", "allocated"}
    except AssertionError:
        return False


def live(slurm: Cluster, key: str) -> list[str]:
    """The jobs of a launch that may still begin."""
    told = slurm.ask("squeue", "--noheader", "--format=%A %T %k").splitlines()
    return [line for line in told if line.endswith(f"{RUN}.{key}")]


def test_a_controller_killed_at_any_step_of_an_act_leaves_one_launch_or_none(
    slurm: Cluster, tmp_path: Path
) -> None:
    """Whoever repeats the act once the controller is back makes it whole, and nothing twice."""
    held = Held(slurm, tmp_path)
    for act, steps in (("hold", HOLDING), ("withdraw", WITHDRAWING)):
        for step in steps:
            key = f"{act}-{step}"
            queue = held.queue(limit_s=2.0)
            if act == "withdraw":
                assert queue.hold(following(key, wakes_in=HOUR)).state is HeldState.HELD
            dies_at(queue, slurm, step)
            with suppress(SourceUnavailable):
                if act == "hold":
                    queue.hold(following(key, wakes_in=HOUR))
                else:
                    queue.withdraw(key)
            assert "slurmctld" not in slurm.daemons, f"{key}: nobody was killed"
            back(slurm)
            again = held.queue()
            assert len(live(slurm, key)) <= 1, key
            if act == "hold":
                assert again.hold(following(key, wakes_in=HOUR)).state is HeldState.HELD, key
                assert len(live(slurm, key)) == 1, key
            assert again.withdraw(key)
            assert live(slurm, key) == [], key
            found = again.find(key)
            assert found is not None
            assert found.state is HeldState.WITHDRAWN, key


def test_a_held_job_that_the_controller_forgot_is_known_to_be_gone(
    slurm: Cluster, tmp_path: Path
) -> None:
    """Killed before it had saved the job that it took, it comes back without it.

    The run looks before it leaves, and does not count on it, also where somebody else's job has its
    number by then.
    """
    held = Held(slurm, tmp_path)
    state, before = slurm.folder / "state", tmp_path / "state"
    slurm.kill_controller()
    shutil.copytree(state, before)
    back(slurm)
    kept = held.queue().hold(following(wakes_in=HOUR))
    assert kept.state is HeldState.HELD
    slurm.stop("slurmctld", signal.SIGKILL)
    shutil.rmtree(state)
    shutil.copytree(before, state)
    back(slurm)
    number = 0
    while f"Slurm job {number} " not in kept.name:
        found = held.queue().find("plan-1")
        assert found is not None
        assert found.state is HeldState.WITHDRAWN
        number = slurm.submit(tmp_path / "train.sh", "--hold", "--comment=wattmesh:other.plan-1")
        assert number < 1000
    found = held.queue().find("plan-1")
    assert found is not None
    assert found.state is HeldState.WITHDRAWN
