"""A node that loses its power while its job holds or begins the next one: one launch trains."""

from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from tests.slurm.cluster import ENDED, Cluster
from tests.slurm.jobs.paper import Paper
from tests.slurm.test_killed import DONE, RESIZE, WITH_WAY_BACK, Kill, judge

KILLS = (
    Kill(act="hold", step=8),  # the next job is submitted, and in no book
    Kill(act="hold@2", step=13),  # that and the way back are held, and the run is to leave
    Kill(act="claim", step=3),  # the next job has begun, and is in no book
)


def test_a_node_that_is_killed_at_a_step_loses_no_run_and_doubles_none(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slurmd, its step daemons and all processes of its jobs; Slurm starts those elsewhere."""
    runs: dict[Kill, tuple[Paper, Path]] = {}
    for number, kill in enumerate(KILLS):
        where = tmp_path / str(number)
        first = WITH_WAY_BACK if kill.act == "hold@2" else RESIZE
        run = Paper(slurm, where, first, DONE, module="tests.slurm.jobs.dying", more="")
        run.mark("node-dies")  # until then its batch script lives
        monkeypatch.setenv("DIES", f"{kill.act}:{kill.step}")
        monkeypatch.setenv("DIED", str(where / "died"))
        run.submit("--time=10")
        runs[kill] = (run, where / "died")
    died = [path for _, path in runs.values()]
    wait_for(lambda: all(each.exists() and each.read_text() for each in died), "each step")
    jobs = ",".join(each.read_text() for each in died)
    told = slurm.ask("squeue", "--noheader", f"--jobs={jobs}", "--format=%B").split()
    nodes = sorted(set(told))
    assert nodes, "their jobs have ended before"
    for node in nodes:
        slurm.kill_node(node)
    try:
        for kill, (run, _) in runs.items():
            judge(kill, run)
        again = slurm.ask(
            *("squeue", "--noheader", "--states=all", f"--jobs={jobs}", "--Format=RestartCnt")
        )
        assert all(int(each) >= 1 for each in again.split()), "a job outlived its node"
    finally:
        for node in nodes:
            slurm.start(node)
    assert [job for job, state in slurm.states().items() if state not in ENDED] == []
