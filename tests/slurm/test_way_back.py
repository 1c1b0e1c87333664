"""The way back on a real Slurm: what happens where a run's other size does not begin."""

from pathlib import Path
from typing import Any

from tests.slurm.cluster import Cluster
from tests.slurm.jobs.paper import Paper
from wattmesh.integrations.slurm.own_job import name_of
from wattmesh.reconfig.launcher.launch_book import BookedState

GROW: dict[str, Any] = {"do": "resize", "ranks": 4, "key": "plan-1"}
DONE = {"do": "done"}


def test_a_size_that_never_begins_is_given_up(slurm: Cluster, tmp_path: Path) -> None:
    """From the time on that the order leaves it, the old size begins instead, and only that.

    All nodes but one are taken away while the run leaves.
    """
    run = Paper(slurm, tmp_path, {**GROW, "back_s": 2.0, "linger": "go"}, DONE)
    job = run.submit("--nodelist=n1")
    run.wait_told(2)
    slurm.ask("scontrol", "update", "nodename=n[2-4]", "state=drain", "reason=test")
    run.mark("go")
    launches = run.wait_until(2)
    run.wait_ended()
    assert [(each["ranks"], each["nodes"]) for each in launches] == [(2, 1), (2, 1)]
    book = {each.key: each for each in run.book()}
    back, ordered = book["plan-1.back"], book["plan-1"]
    assert (back.state, back.ranks) == (BookedState.BEGUN, 2)
    assert ordered.state is BookedState.WITHDRAWN
    assert run.jobs()[int(ordered.jobs[-1].rpartition("/")[2])] == "CANCELLED"
    assert name_of("test", launches[1]["job"]) == back.begun_by != name_of("test", job)


def test_a_size_that_begins_leaves_no_way_back(slurm: Cluster, tmp_path: Path) -> None:
    """Its job is cancelled as soon as the ordered one may train."""
    run = Paper(slurm, tmp_path, {**GROW, "back_s": 3600.0}, DONE)
    run.submit()
    launches = run.wait_until(2)
    run.wait_ended()
    assert [each["ranks"] for each in launches] == [2, 4]
    assert sorted(run.jobs().values()) == ["CANCELLED", "COMPLETED", "COMPLETED"]


def test_a_way_back_that_somebody_cancels_keeps_the_run_where_it_is(
    slurm: Cluster, tmp_path: Path
) -> None:
    """Nobody leaves without one: the job looks before it goes, and withdraws the other.

    Nor where an administrator holds it back: it may never begin.
    """
    acts = {"cancelled": ("scancel",), "held": ("scontrol", "hold")}
    grow = {**GROW, "back_s": 3600.0, "linger": "go"}
    runs = {name: Paper(slurm, tmp_path / name, grow, DONE) for name in acts}
    jobs = {name: run.submit() for name, run in runs.items()}
    for name, run in runs.items():
        run.wait_told(2)
        back = next(each for each in run.book() if each.key == "plan-1.back")
        slurm.ask(*acts[name], back.jobs[-1].rpartition("/")[2])
        run.mark("go")
    for name, run in runs.items():
        run.wait_ended()
        job = jobs[name]
        assert [(each["job"], each["ranks"]) for each in run.launches()] == [(job, 2), (job, 2)]
        assert "is gone: the run goes on here" in run.said()


def test_a_job_that_can_start_no_rank_is_followed_by_two_others(
    slurm: Cluster, tmp_path: Path
) -> None:
    """As where Slurm gave it no GPUs, or its node refuses: the run is not lost by one bad job."""
    more = "--max-restarts=0 --srun=--gres=gpu:99"
    run = Paper(slurm, tmp_path, DONE, more=more)
    run.folder.attempts.mkdir(parents=True)
    (run.folder.attempts / "0001").touch()  # it has trained before
    job = run.submit()
    slurm.reach(job, "FAILED")
    run.wait_ended()
    assert list(run.jobs().values()) == ["FAILED"] * 3
    assert run.launches() == []
    assert "2 jobs after each other could start no rank" in run.said()


def test_a_run_does_not_leave_for_nodes_that_slurm_cannot_give_in_time(
    slurm: Cluster, tmp_path: Path
) -> None:
    """A job of ten hours does not begin before maintenance in two: its run trains on, and says why.

    The same move of a job that ends before is made. Neither is there a sleep that ends where the
    next job would run into it.
    """
    grow = {**GROW, "back_s": 300, "wait": "go"}
    sleep = {"do": "suspend", "for_s": 3600, "key": "doze", "wait": "go"}
    limits = {"long": 600, "short": 60, "sleeps": 90}
    runs = {
        name: Paper(slurm, tmp_path / name, sleep if name == "sleeps" else grow, DONE)
        for name in limits
    }
    for name, run in runs.items():
        run.submit(f"--time={limits[name]}")
    for run in runs.values():
        run.wait_until(1)
    slurm.ask(
        *("scontrol", "create", "reservation", "ReservationName=maint", "StartTime=now+7200"),
        *("Duration=120", "Nodes=ALL", "Users=root", "Flags=MAINT,IGNORE_JOBS"),
    )
    try:
        for run in runs.values():
            run.mark("go")
        for run in runs.values():
            run.wait_ended()
    finally:
        slurm.ask("scontrol", "delete", "ReservationName=maint")
    for name in ("long", "sleeps"):
        run = runs[name]
        assert "4 in reservation maint" in run.told()[1]["problem"], run.where()
        assert len(run.launches()) == 1
    assert [each["ranks"] for each in runs["short"].launches()] == [2, 4], runs["short"].where()
