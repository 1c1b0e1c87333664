"""Jobs on a real Slurm that follow each other: another size, sleep, and what people do to them."""

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.paper import Paper

HOUR_S = 3600.0
RESIZE = {"do": "resize", "ranks": 4, "key": "plan-1"}
SLEEP = {"do": "suspend", "for_s": HOUR_S, "key": "plan-1"}
DONE = {"do": "done"}


def test_a_run_leaves_for_another_size_and_comes_back(slurm: Cluster, tmp_path: Path) -> None:
    """Each job is followed by one of the ordered ranks, on as many nodes, with as many GPUs each."""
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


@pytest.mark.parametrize("how", ["alarm", "by hand"])
def test_a_run_that_sleeps_wakes(slurm: Cluster, tmp_path: Path, how: str) -> None:
    """By the time that its job was submitted with, or as soon as its user says so."""
