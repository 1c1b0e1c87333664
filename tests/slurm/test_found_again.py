"""What a job must find before it trains: its own launch, and its own run."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.waiting import wait_for
from tests.slurm.cluster import Cluster
from tests.slurm.jobs.paper import Paper
from wattmesh.errors import SourceUnavailable
from wattmesh.integrations.slurm import __main__ as commands
from wattmesh.integrations.slurm.client import SlurmClient
from wattmesh.integrations.slurm.job_step import StepLauncher
from wattmesh.integrations.slurm.own_job import LaunchShape
from wattmesh.reconfig.launcher.supervisor import TOKEN_VARIABLE

RESIZE: dict[str, Any] = {"do": "resize", "ranks": 4, "key": "plan-1"}
SLEEP = {"do": "suspend", "for_s": 3600.0, "key": "plan-1"}
STOPPED = {"do": "stopped"}
DONE = {"do": "done"}


def held_job(run: Paper) -> str:
    """Give the id of the job that is to wake a run."""
    return run.book()[-1].jobs[-1].rpartition("/")[2]


def test_a_script_that_submits_itself_again_trains_on(slurm: Cluster, tmp_path: Path) -> None:
    """The job's environment hands its launch's key on; the new job is one by hand all the same.

    It may even begin before the job that submitted it has ended.
    """
    run = Paper(slurm, tmp_path, RESIZE, STOPPED, DONE)
    again = f"[ $status = 75 ] && sbatch --nodes=2 --ntasks-per-node=2 {run.script} && sleep 1\n"
    run.script.write_text(run.script.read_text().replace("exit $status", f"{again}exit $status"))
    run.submit()
    launches = run.wait_until(3)
    run.wait_ended()
    assert [each["do"] for each in launches] == ["resize", "stopped", "done"]
    assert [each["attempt"] for each in launches] == [1, 2, 3]


def test_a_run_whose_folder_is_away_is_not_begun_anew(slurm: Cluster, tmp_path: Path) -> None:
    """A job that is to wake it waits for the folder, as where a node lacks a file system."""
    run = Paper(slurm, tmp_path, SLEEP, DONE)
    job = run.submit()
    run.wait_until(1)
    slurm.reach(job, "COMPLETED")
    held = held_job(run)
    away = run.folder.path.rename(tmp_path / "away")
    slurm.ask("scontrol", "update", f"jobid={held}", "StartTime=now")
    wait_for(lambda: "holds no run" in run.said(), "that the job misses the run")
    assert len(run.launches()) == 1
    assert not run.folder.path.exists()
    away.rename(run.folder.path)
    run.wait_until(2)
    run.wait_ended()
    assert [each["attempt"] for each in run.launches()] == [1, 2]


def test_no_step_is_started_while_the_controller_is_away(slurm: Cluster) -> None:
    """Its supervisor is told so, and waits; a failed `srun` would count as a failed launch."""
    shape, client = LaunchShape(nodes=1, per_node=1), SlurmClient(limit_s=1.0)
    launcher = StepLauncher(shape, ["true"], client, job=1)
    with slurm.hanging(), pytest.raises(SourceUnavailable, match="squeue did not answer"):
        launcher.launch({TOKEN_VARIABLE: "a token of a launch"})


def test_who_watches_over_a_sleeping_run_outlives_the_controller(
    slurm: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While Slurm does not answer it asks again, and it ends when the held job is gone."""
    run = Paper(slurm, tmp_path, SLEEP, DONE)
    job = run.submit()
    run.wait_until(1)
    slurm.reach(job, "COMPLETED")
    monkeypatch.setattr(commands, "WATCH_S", 0.1)
    monkeypatch.setattr(commands, "LOOK_EVERY", 1)
    said, status = "", list[int]()
    words = ("wake", "--watch", f"--checkpoint-dir={run.folder.path}")
    watcher = threading.Thread(target=lambda: status.append(commands.main(words)), daemon=True)

    def told() -> str:
        nonlocal said
        said += capsys.readouterr().err
        return said

    slurm.kill_controller()
    watcher.start()
    wait_for(lambda: "asking again" in told(), "that Slurm is away")
    slurm.start("slurmctld")
    wait_for(slurm.is_ready, "the controller")
    assert status == [], said
    slurm.ask("scancel", held_job(run))
    watcher.join(60.0)
    print(said, file=sys.stderr)
    assert status in ([0], [1]), said
    assert "is gone" in told() or "submit the script again" in said
