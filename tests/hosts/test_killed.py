"""Supervisors and ranks killed at every step of a move: one launch trains on, never two or none."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.daemon.waiting import wait_for
from tests.hosts.namespaces import REPOSITORY, TwoHosts
from tests.hosts.run_on_hosts import JOB, HostedRun, paper_run
from wattmesh.reconfig.launcher.launch_book import BookedState

SHRINK = {"do": "resize", "ranks": 1, "key": "plan-1"}
GROW = {"do": "resize", "ranks": 2, "key": "plan-2"}
DONE = {"do": "done"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Which host's supervisor is killed, and at which step."""

    dies: str
    host: int = 0


KILLS = (
    # The leader, while the smaller launch is held, and as it begins.
    *(Kill(dies=step) for step in ("before:book:2", "after:book:2", "after:answer:1")),
    *(Kill(dies=step) for step in ("before:meeting:3", "after:book:3", "after:share:2")),
    # The leader, as the larger launch begins.
    *(Kill(dies=step) for step in ("before:book:5", "after:book:5", "after:send:2")),
    Kill(dies="after:share:3"),
    # The other host, as it starts ranks.
    *(Kill(dies=step, host=1) for step in ("before:share:1", "after:share:2")),
)


def test_whatever_step_a_supervisor_is_killed_at_one_launch_trains_on(
    two: TwoHosts, tmp_path: Path
) -> None:
    """Two hosts, one, two: for each kill the run is finished once, and no process is left.

    All runs at once: most of it is waiting.
    """
    runs: dict[Kill, HostedRun] = {}
    for number, kill in enumerate(KILLS):
        where = tmp_path / str(number)
        runs[kill] = paper_run(two, where, SHRINK, GROW, DONE, dies=kill.dies, host=kill.host)
    try:
        for run in runs.values():
            run.start(0)
            run.start(1)
        wait_for(
            lambda: all([run.is_over() for run in runs.values()]), "the end of all", limit_s=240.0
        )
    except AssertionError as error:
        known = "\n".join(
            f"{kill}: {run.where()}" for kill, run in runs.items() if not run.is_over()
        )
        raise AssertionError(known) from error
    finally:
        for run in runs.values():
            run.end()
    for kill, run in runs.items():
        _judge(kill, run)


def _judge(kill: Kill, run: HostedRun) -> None:
    did = [each["do"] for each in run.launches()]
    assert (run.out / "died").exists(), f"{kill}: nobody died: {run.where()}"
    assert did[-1] == "done", f"{kill}: lost: {run.where()}"
    assert "refused" not in did, f"{kill}: two at once: {run.where()}"
    assert run.statuses[kill.host] == [-signal.SIGKILL, 0], f"{kill}: {run.where()}"
    assert run.statuses[1 - kill.host] == [0], f"{kill}: {run.where()}"
    states = {each.state for each in run.book()}
    assert states <= {BookedState.BEGUN, BookedState.WITHDRAWN}, f"{kill}: {run.where()}"
    attempts = [each["attempt"] for each in run.launches()]
    assert attempts == sorted(set(attempts)), f"{kill}: {run.where()}"


def test_a_host_that_vanishes_is_waited_for_and_nothing_shrinks(
    two: TwoHosts, tmp_path: Path
) -> None:
    """Its supervisor is killed, and then a rank: the launch ends everywhere, and all go on."""
    waits = {"do": "done", "wait": "go"}
    run = paper_run(two, tmp_path / "run", waits, waits, DONE)
    try:
        run.start(0)
        run.start(1)
        run.wait(run.launches, "the first launch")
        # Not tended until it is missed.
        os.kill(run.pid(1), signal.SIGKILL)
        log = run.out / "host-0.log"
        wait_for(lambda: "waiting for host 1" in log.read_text(), "that host 1 is missed")
        assert len(run.launches()) == 1
        run.wait(lambda: len(run.launches()) == 2, "that it is back")
        os.kill(run.launches()[1]["pids"]["host-1/1"], signal.SIGKILL)
        run.wait(run.is_over, "the end")
    finally:
        run.end()
    assert [each["ranks"] for each in run.launches()] == [2, 2, 2], run.where()
    assert run.launches()[-1]["hosts"] == ["host-0", "host-1"]
    assert run.statuses == {0: [0], 1: [-signal.SIGKILL, 0]}


def test_a_cut_cable_ends_the_launch_on_both_sides_until_it_is_mended(
    two: TwoHosts, tmp_path: Path
) -> None:
    """Packets vanish and no connection breaks: silence ends all ranks, and both hosts wait."""
    run = paper_run(two, tmp_path / "run", {"do": "done", "wait": "go"}, DONE)
    run.only[0]["SILENCE_S"] = run.only[1]["SILENCE_S"] = "5"
    try:
        run.start(0)
        run.start(1)
        run.wait(run.launches, "the first launch")
        ranks = run.launches()[0]["pids"].values()
        assert all(_is_rank(pid) for pid in ranks)
        two.cable(1, "down")
        run.wait(lambda: not any(_is_rank(pid) for pid in ranks), "that no rank is left")
        two.cable(1, "up")
        run.wait(run.is_over, "the end")
    finally:
        two.cable(1, "up")
        run.end()
    assert [each["ranks"] for each in run.launches()] == [2, 2], run.where()
    assert run.statuses == {0: [0], 1: [0]}, run.where()


def _is_rank(pid: int) -> bool:
    try:
        return str(JOB).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_leader_that_ends_as_it_should_ends_all_hosts(two: TwoHosts, tmp_path: Path) -> None:
    """Asked to stop at another host, the whole run stops in band, with one status everywhere.

    Sabotaged twin of the matrix: a second launch beside the first, asked by nobody, is seen.
    """
    run = paper_run(two, tmp_path / "run", {"do": "stopped", "wait": "run/stop"})
    try:
        run.start(0)
        run.start(1)
        run.wait(run.launches, "the launch")
        assert _second_launch(run) == "refused"
        os.kill(run.pid(1), signal.SIGTERM)
        run.wait(run.is_over, "the end")
    finally:
        run.end()
    assert run.statuses == {0: [75], 1: [75]}, run.where()


def _second_launch(run: HostedRun) -> str:
    """Start a rank that no supervisor knows of; returns what it did."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    words = [sys.executable, str(JOB), str(run.out / "plan.json")]
    subprocess.run(words, env={**os.environ, **alone}, cwd=REPOSITORY, check=False)
    return str(run.launches()[-1]["do"])
