"""A job killed at every step of what its launcher does: one launch trains on, never two or none."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from tests.slurm.cluster import ENDED, Cluster
from tests.slurm.jobs.paper import Paper
from wattmesh.reconfig.launcher.launch_book import BookedState

RESIZE = {"do": "resize", "ranks": 4, "key": "plan-1"}
UNWANTED = {**RESIZE, "then": "failed"}
WITH_WAY_BACK = {**RESIZE, "back_s": 3600.0}
DONE = {"do": "done"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Where a job is killed. `requeued`: Slurm starts it again, as where its node was lost."""

    act: str
    step: int
    requeued: bool = True


KILLS = (
    # Steps of a hold: GPUs, script, options, could it start?, book, look, submit, look, book, end.
    *(Kill(act="hold", step=step) for step in (5, 6, 7, 8, 9, 10)),
    *(Kill(act="hold", step=step, requeued=False) for step in (8, 10)),
    # The way back is held, and the ordered launch is or is not. Three steps more, before the book:
    # nodes, reservations, time limit.
    *(Kill(act="hold@2", step=step) for step in (6, 8, 10, 13)),
    Kill(act="hold@2", step=13, requeued=False),
    # Steps of a beginning: look, measure, book, the end.
    *(Kill(act="claim", step=step) for step in (1, 3, 4)),
    # Steps of a withdrawal: book, look, cancel.
    *(Kill(act="withdraw", step=step) for step in (1, 2, 3)),
)


def test_whatever_step_a_job_is_killed_at_one_launch_trains_on(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each kill: the run is finished once, by the old or the new launch, and nothing is left.

    All runs at once: what is waited for is the time that Slurm takes.
    """
    runs: dict[Kill, tuple[Paper, Path]] = {}
    for number, kill in enumerate(KILLS):
        where = tmp_path / str(number)
        first = UNWANTED if kill.act == "withdraw" else RESIZE
        first = WITH_WAY_BACK if kill.act.startswith("hold@") else first
        run = Paper(slurm, where, first, DONE, module="tests.slurm.jobs.dying", more="")
        died = where / "died"
        if kill.requeued:
            run.mark("node-dies")
        monkeypatch.setenv("DIES", f"{kill.act}:{kill.step}")
        monkeypatch.setenv("DIED", str(died))
        run.submit("--time=10")
        runs[kill] = (run, died)
    dying = dict(runs)

    def all_died() -> bool:
        for kill, (_, died) in list(dying.items()):
            if died.exists() and (number := died.read_text()):
                del dying[kill]
                if kill.requeued:
                    slurm.ask("scontrol", "requeue", number)
        slurm.hurry()
        return not dying

    try:
        wait_for(all_died, "that every one was killed")
    except AssertionError as error:
        known = "\n".join(f"{kill}: {run.where()}" for kill, (run, _) in dying.items())
        raise AssertionError(known) from error
    for each, (moved, _) in runs.items():
        judge(each, moved)
    left = [job for job, state in slurm.states().items() if state not in ENDED]
    assert left == []


def judge(kill: Kill, run: Paper) -> None:
    """Wait for the end of a run: it came once, in one launch at a time, and nothing is left."""

    def finished() -> bool:
        run.slurm.hurry()
        return any(each["do"] == "done" for each in run.launches())

    try:
        wait_for(finished, "the end")
    except AssertionError as error:
        raise AssertionError(f"{kill}: lost: {run.where()}") from error
    run.wait_ended()
    did = [each["do"] for each in run.launches()]
    assert did.count("done") == 1, f"{kill}: {run.where()}"
    assert "refused" not in did, f"{kill}: two at once: {run.where()}"
    states = {each.state for each in run.book()}
    assert states <= {BookedState.BEGUN, BookedState.WITHDRAWN}, f"{kill}: {run.where()}"
    attempts = [each["attempt"] for each in run.launches()]
    assert attempts == sorted(set(attempts)), f"{kill}: {run.where()}"
