"""Jobs on a real Slurm that follow each other: another size, sleep, and what people do to them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.waiting import wait_for
from tests.slurm.cluster import ENDED, Cluster
from tests.slurm.jobs.paper import REPOSITORY, Paper
from wattmesh.integrations.slurm.client import KEY_VARIABLE
from wattmesh.reconfig.launcher.launch_book import BookedState

HOUR_S = 3600.0
RESIZE: dict[str, Any] = {"do": "resize", "ranks": 4, "key": "plan-1"}
SLEEP = {"do": "suspend", "for_s": HOUR_S, "key": "plan-1"}
DONE = {"do": "done"}
LINGER = {"linger": "go"}


def states(run: Paper) -> list[BookedState]:
    """Give what the book says of each launch."""
    return [each.state for each in run.book()]


def test_a_run_leaves_for_another_size_and_comes_back(slurm: Cluster, tmp_path: Path) -> None:
    """Each job is followed by one of the ordered ranks, with as many nodes, and GPUs on each."""
    back = {"do": "resize", "ranks": 2, "key": "plan-2"}
    run = Paper(slurm, tmp_path, RESIZE, back, DONE)
    run.submit("--partition=other", "--job-name=my run", "--time=60")
    launches = run.wait_until(3)
    run.wait_ended()
    assert [(each["ranks"], each["nodes"], each["gpus"]) for each in launches] == [
        (2, 1, "0,1"),
        (4, 2, "0,1"),
        (2, 1, "0,1"),
    ]
    assert [each["attempt"] for each in launches] == [1, 2, 3]
    assert len({each["job"] for each in launches}) == 3
    assert all(each["holds"] and not each["leaked"] for each in launches)
    assert set(run.jobs().values()) == {"COMPLETED"}
    told = slurm.ask("squeue", "--noheader", "--states=all", "--format=%A %P %l %j").splitlines()
    jobs = {str(each["job"]) for each in launches}
    assert {line.partition(" ")[2] for line in told if line.split()[0] in jobs} == {
        "other 1:00:00 my run"
    }


def test_a_run_that_sleeps_wakes_by_its_alarm(slurm: Cluster, tmp_path: Path) -> None:
    """Slurm starts it at its time, with nobody of ours alive, a restart of its controller between.

    What asked for the sleep is gone from the run folder before the next launch looks at it.
    """
    run = Paper(slurm, tmp_path, {**SLEEP, "for_s": 10.0}, DONE)
    job = run.submit()
    run.wait_until(1)
    slurm.reach(job, "COMPLETED")
    slurm.kill_controller()
    slurm.start("slurmctld")
    run.wait_until(2)
    run.wait_ended()
    assert [each["attempt"] for each in run.launches()] == [1, 2]
    assert states(run) == [BookedState.BEGUN] * 2
    assert not run.folder.hold_file.exists()


def test_a_user_wakes_a_run_before_its_time(slurm: Cluster, tmp_path: Path) -> None:
    """`wake` without an order changes nothing; `wake --now` begins the launch that is held."""
    run = Paper(slurm, tmp_path, SLEEP, DONE)
    job = run.submit()
    run.wait_until(1)
    slurm.reach(job, "COMPLETED")
    words = (sys.executable, "-m", "wattmesh.integrations.slurm", "wake", "--checkpoint-dir")
    told = subprocess.run(
        [*words, str(run.folder.path)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "the run sleeps on" in told.stderr
    assert len(run.launches()) == 1
    subprocess.run([*words, str(run.folder.path), "--now"], cwd=REPOSITORY, check=True)
    run.wait_until(2)
    run.wait_ended()
    assert states(run) == [BookedState.BEGUN] * 2


def test_a_run_whose_next_launch_was_cancelled_is_started_by_hand(
    slurm: Cluster, tmp_path: Path
) -> None:
    """A user who cancels the held job ends the run; submitting the script again resumes it."""
    run = Paper(slurm, tmp_path, SLEEP, DONE)
    job = run.submit()
    run.wait_until(1)
    slurm.reach(job, "COMPLETED")
    (held,) = (each for each in run.jobs() if each != job)
    slurm.ask("scancel", str(held))
    run.submit()
    run.wait_until(2)
    run.wait_ended()
    assert [each["attempt"] for each in run.launches()] == [1, 2]


def test_a_held_job_that_is_cancelled_before_the_run_leaves_is_missed(
    slurm: Cluster, tmp_path: Path
) -> None:
    """The job looks before it goes, and trains on where it is."""
    run = Paper(slurm, tmp_path, {**RESIZE, **LINGER}, DONE)
    job = run.submit()
    wait_for(lambda: len(run.told()) == 2, "that the next launch is held")
    (held,) = run.book()[-1].jobs
    slurm.ask("scancel", held.rpartition("/")[2])
    run.mark("go")
    slurm.reach(job, "COMPLETED")
    assert [each["job"] for each in run.launches()] == [job, job]
    assert "is gone: the run goes on here" in run.said()


def test_of_two_jobs_that_were_submitted_for_one_launch_one_trains(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a submission was thought lost: both begin at once, and the book lets one."""
    run = Paper(slurm, tmp_path, {**RESIZE, **LINGER}, DONE)
    job = run.submit()
    wait_for(lambda: len(run.told()) == 2, "that the next launch is held")
    monkeypatch.setenv(KEY_VARIABLE, RESIZE["key"])
    late = run.submit(f"--dependency=afterany:{job}", nodes=2)
    # Slurm tells whole seconds: one submitted in the second in which the other began counts
    # as submitted by that.
    next_second = int(time.time()) + 1
    wait_for(lambda: time.time() >= next_second, "another second")
    run.mark("go")
    slurm.reach(late, "COMPLETED")
    run.wait_ended()
    assert [each["do"] for each in run.launches()] == ["resize", "done"]
    assert "launch plan-1 has begun as job test/" in run.said()


def test_nothing_is_left_of_a_launch_whose_srun_was_killed(slurm: Cluster, tmp_path: Path) -> None:
    """Its ranks are ended before the next launch starts, which is not refused as a second one."""
    run = Paper(slurm, tmp_path, {**DONE, "wait": "go"}, more="--max-restarts=2")
    run.submit()
    run.wait_until(1)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0] == b"srun" and str(run.plan).encode() in words:
                os.kill(int(path.parent.name), signal.SIGKILL)
    run.wait_until(2)
    run.mark("go")
    run.wait_ended()
    assert [each["do"] for each in run.launches()] == ["done", "done"]
    assert "launching again" in run.said()


def test_a_launch_by_hand_takes_the_place_of_a_held_one(slurm: Cluster, tmp_path: Path) -> None:
    """A user who does not wait for the alarm gets one run, not two."""
    run = Paper(slurm, tmp_path, SLEEP, {**DONE, "wait": "go"})
    first = run.submit()
    run.wait_until(1)
    slurm.reach(first, "COMPLETED")
    run.submit()
    run.wait_until(2)
    (held,) = run.book()[0].jobs or run.book()[1].jobs
    slurm.reach(int(held.rpartition("/")[2]), "CANCELLED")
    run.mark("go")
    run.wait_ended()
    assert len(run.launches()) == 2


def test_a_second_submission_waits_for_the_job_that_trains(slurm: Cluster, tmp_path: Path) -> None:
    """It touches nothing that the first one holds, and begins when that one has ended."""
    run = Paper(slurm, tmp_path, {**DONE, "wait": "go"}, DONE)
    first = run.submit()
    run.wait_until(1)
    second = run.submit()
    wait_for(lambda: f"job test/{first} trains this run now" in run.said(), "that it waits")
    run.mark("go")
    run.wait_until(2)
    slurm.reach(second, "COMPLETED")
    assert [each["job"] for each in run.launches()] == [first, second]


def test_a_node_that_goes_down_brings_the_old_launch_back(slurm: Cluster, tmp_path: Path) -> None:
    """Slurm starts the job again elsewhere; what it had held before is withdrawn."""
    run = Paper(slurm, tmp_path, {**RESIZE, **LINGER}, DONE)
    job = run.submit()
    wait_for(lambda: len(run.told()) == 2, "that the next launch is held")
    node = slurm.ask("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    slurm.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    slurm.reach(job, "PENDING")
    slurm.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    slurm.hurry()
    run.wait_until(2)
    run.wait_ended()
    assert [(each["job"], each["ranks"]) for each in run.launches()] == [(job, 2), (job, 2)]
    assert states(run) == [BookedState.WITHDRAWN, BookedState.BEGUN]
    assert "CANCELLED" in run.jobs().values()


def test_a_job_that_is_requeued_late_gives_way(slurm: Cluster, tmp_path: Path) -> None:
    """An administrator requeues the job that was followed: the one that follows trains on."""
    run = Paper(slurm, tmp_path, RESIZE, {**DONE, "wait": "go"})
    job = run.submit()
    (_, second) = run.wait_until(2)
    slurm.ask("scontrol", "requeue", str(job))
    slurm.reach(job, "PENDING")
    slurm.hurry()
    gives_way = f"job {job} has nothing to do: job test/{second['job']} trains this run now."
    wait_for(lambda: gives_way in run.said(), "that it gives way")
    run.mark("go")
    run.wait_ended()
    assert len(run.launches()) == 2
    assert set(run.jobs().values()) == {"COMPLETED"}


def test_a_controller_that_is_away_keeps_the_run_as_it_is(slurm: Cluster, tmp_path: Path) -> None:
    """What cannot be held is not left: the job says why, and trains on."""
    run = Paper(slurm, tmp_path, {**RESIZE, "wait": "go"})
    job = run.submit()
    run.wait_until(1)
    slurm.kill_controller()
    run.mark("go")
    wait_for(lambda: len(run.told()) == 2, "an answer")
    slurm.start("slurmctld")
    slurm.reach(job, "COMPLETED")
    assert run.told()[1]["answer"] == ""
    assert "Unable to contact slurm controller" in run.told()[1]["problem"]
    assert len(run.launches()) == 1


def test_gpus_that_are_asked_for_as_a_whole_are_not_taken_to_another_size(
    slurm: Cluster, tmp_path: Path
) -> None:
    """A job on half the nodes would have all of them still, and give none back."""
    run = Paper(slurm, tmp_path, {**RESIZE, "ranks": 2})
    run.script.write_text(run.script.read_text().replace("--gpus-per-node=2", "--gpus=4"))
    job = run.submit(nodes=2)
    run.wait_told(2)
    slurm.reach(job, "COMPLETED")
    assert "asks for gres:gpu:4 in all" in run.told()[1]["problem"]
    assert [state for state in slurm.states().values() if state not in ENDED] == []


@pytest.mark.parametrize(
    ("ranks", "more", "why"),
    [
        (100, "", "Requested node configuration is not available"),
        (3, "", "3 ranks do not divide among 2 nodes"),
        (4, "--sbatch=--hold", "take `--hold` out of the script"),
        (4, "--sbatch=--gpus-per-node=4", "its gpus on each node are gres:gpu:4"),
    ],
)
def test_what_would_never_start_as_ordered_is_not_held(
    slurm: Cluster, tmp_path: Path, ranks: int, more: str, why: str
) -> None:
    """The job says why, trains on, and leaves nothing in the queue."""
    run = Paper(slurm, tmp_path, {**RESIZE, "ranks": ranks}, more=more)
    job = run.submit()
    run.wait_until(1)
    slurm.reach(job, "COMPLETED")
    assert why in run.told()[1]["problem"]
    assert [state for state in slurm.states().values() if state not in ENDED] == []
