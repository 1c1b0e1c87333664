"""The queue on a real Slurm: found again, bound to run and user, whether Slurm answers or not."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from tests.slurm.cluster import Cluster
from wattmesh.errors import SourceUnavailable
from wattmesh.integrations.slurm.begin import StartedJob
from wattmesh.integrations.slurm.client import SlurmClient
from wattmesh.integrations.slurm.own_job import OwnJob
from wattmesh.integrations.slurm.slurm_queue import Followed, SlurmQueue
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher import launch_book
from wattmesh.reconfig.launcher.contract import HeldState, NextLaunch
from wattmesh.reconfig.launcher.launch_book import LaunchBook

RUN = "3a7c1a52-3d0f-4b6c-8d5e-0a3f7f6a9c11"
NOBODY = 65534
HOUR = timedelta(hours=1)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that any user may write in."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-shared-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


class Held:
    """A job that trains, and the queue of its run."""

    def __init__(self, slurm: Cluster, where: Path, uid: int = 0) -> None:
        """Start the job."""
        script = where / "train.sh"
        script.write_text("#!/bin/sh\nsleep 300\n")
        words = (f"--chdir={where}", "--output=/dev/null", "--ntasks-per-node=1")
        self.slurm, self.job = slurm, slurm.submit(script, *words, uid=uid)
        slurm.reach(self.job, "RUNNING")
        self.folder = RunFolder(where / "run")
        self.folder.path.mkdir(mode=0o777)
        self.folder.path.chmod(0o777)

    def queue(
        self, *, limit_s: float = 20.0, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> SlurmQueue:
        """Make the queue, as the job's supervisor does."""
        followed = Followed(
            cluster="test", number=self.job, after=self.job, most_per_node=1, arguments=()
        )
        return SlurmQueue(SlurmClient(limit_s=limit_s), self.folder, followed, now)

    def waiting(self) -> set[int]:
        """The jobs that wait."""
        told = self.slurm.ask("squeue", "--noheader", "--states=PENDING", "--format=%A")
        return {int(job) for job in told.split()}


def following(key: str = "plan-1", ranks: int = 1, wakes_in: timedelta | None = None) -> NextLaunch:
    """Give a launch to hold."""
    begins_at = datetime.now(UTC) + wakes_in if wakes_in else None
    return NextLaunch(key=key, run=RUN, ranks=ranks, begins_at=begins_at)


def test_a_submission_that_took_effect_unanswered_is_found_again(
    slurm: Cluster, tmp_path: Path
) -> None:
    """The controller answers after the client has gone: holding again submits nothing."""
    held = Held(slurm, tmp_path)
    client = SlurmClient()
    queue = held.queue(limit_s=1.5)
    hang = slurm.hanging()

    def submit(*words: object) -> int:
        with hang:
            return whole(*words)  # type: ignore[arg-type]

    whole = queue._client.submit
    queue._client.submit = submit  # type: ignore[method-assign,assignment]
    # What the client is told after it has gone depends on who was faster; the queue does not.
    try:
        first = queue.hold(following())
    except SourceUnavailable:
        first = None
    wait_for(held.waiting, "that the submission took effect")
    second = held.queue().hold(following())
    assert len(held.waiting()) == 1
    assert second.state is HeldState.HELD
    assert first is None or first.name == second.name
    assert held.queue().withdraw("plan-1")
    assert all(each.number == held.job for each in client.jobs() if each.is_live)
    found = held.queue().find("plan-1")
    assert found is not None
    assert found.state is HeldState.WITHDRAWN


@pytest.mark.parametrize("meanwhile", [True, False])
def test_a_launch_that_another_job_withdrew_meanwhile_is_not_called_held(
    slurm: Cluster, tmp_path: Path, meanwhile: bool
) -> None:
    """The run would have left for it, and no job of it may train. Twin: nobody withdraws it."""
    held = Held(slurm, tmp_path)
    queue = held.queue()
    submit = queue._client.submit

    def begun_meanwhile(*words: object) -> int:
        if meanwhile:
            LaunchBook(held.folder).change(launch_book.withdraw_all)
        return submit(*words)  # type: ignore[arg-type]

    queue._client.submit = begun_meanwhile  # type: ignore[method-assign,assignment]
    found = queue.hold(following(wakes_in=HOUR))
    assert found.state is (HeldState.WITHDRAWN if meanwhile else HeldState.HELD)
    wait_for(lambda: bool(held.waiting()) is not meanwhile, "what Slurm holds")


def test_other_users_and_other_runs_jobs_are_not_ours(slurm: Cluster, shared: Path) -> None:
    """A comment may be copied, and may hold anything: only this user's, of this run, counts."""
    held = Held(slurm, shared)
    mark = f"wattmesh:{RUN}.plan-1"
    later = ("--begin=now+3600", "--output=/dev/null", f"--chdir={shared}")
    script = shared / "train.sh"
    theirs = slurm.submit(script, *later, f"--comment={mark}", uid=NOBODY)
    hostile = (f"--comment=x\x1f{held.job}\n{held.job}\x1f0\x1fRUNNING", "--job-name=a\x1fb\nc d")
    slurm.submit(script, *later, *hostile, uid=NOBODY)
    other_run = slurm.submit(script, *later, "--comment=wattmesh:another.plan-1")
    slurm.submit(script, *later, *hostile)
    before = held.waiting()
    assert held.queue().find("plan-1") is None
    kept = held.queue().hold(following(wakes_in=HOUR))
    assert kept.state is HeldState.HELD
    assert len(held.waiting()) == len(before) + 1
    assert held.queue().withdraw("plan-1")
    assert held.waiting() == before
    assert {theirs, other_run} <= before


def test_a_controller_whose_clock_is_behind_wakes_a_run_no_later(
    slurm: Cluster, tmp_path: Path
) -> None:
    """The job begins when the order's time has come by either clock, whichever is first."""
    held = Held(slurm, tmp_path)
    ahead = held.queue(now=lambda: datetime.now(UTC) + HOUR / 2)
    asked = following(wakes_in=HOUR)
    assert asked.begins_at is not None
    ahead.hold(asked)
    held.queue().hold(following("plan-2", wakes_in=HOUR))
    begins = {each.mark: each.begins_at for each in SlurmClient().jobs() if each.mark}
    early, normal = begins[f"{RUN}.plan-1"], begins[f"{RUN}.plan-2"]
    assert early is not None
    assert normal is not None
    assert abs(asked.begins_at - HOUR / 2 - early) < timedelta(seconds=30)
    assert abs(asked.begins_at - normal) < timedelta(seconds=30)


def test_a_book_that_cannot_be_written_holds_nothing_and_withdraws_by_slurm(
    slurm: Cluster, tmp_path: Path
) -> None:
    """What is not on disk is not asked for; what is held is cancelled, and seen to be gone.

    No job begins: it asks again, and says so.
    """
    held = Held(slurm, tmp_path)
    held.queue().hold(following(wakes_in=HOUR))
    book = held.folder.launches_file
    kept = book.read_bytes()
    held.queue().begin_now("plan-1")
    lock = book.with_name(f"{book.name}.lock")
    lock.unlink()
    lock.mkdir()  # no file system takes a file of this name now
    with pytest.raises(SourceUnavailable, match="the launch book cannot be written"):
        held.queue().hold(following("plan-2"))
    started = StartedJob(
        own=OwnJob(cluster="test", number=held.job, requeues=0, nodes=1),
        folder=held.folder,
        key="plan-1",
        ranks=1,
        client=SlurmClient(),
        book=LaunchBook(held.folder),
        queue=held.queue(),
    )
    stop, said = threading.Event(), list[str]()

    def say(sentence: str) -> None:
        said.append(sentence)
        stop.set()

    with pytest.raises(SourceUnavailable, match="the launch book cannot be written"):
        started.claim(stop, say)
    assert "asking again" in said[0]
    assert len(held.waiting()) == 1
    assert held.queue().withdraw("plan-1")
    assert held.waiting() == set()
    assert book.read_bytes() == kept


def test_everything_is_done_as_the_jobs_own_user(slurm: Cluster, shared: Path) -> None:
    """An ordinary user holds, wakes and withdraws, with no right of an operator."""
    held = Held(slurm, shared, uid=NOBODY)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            queue = held.queue()
            done = queue.hold(following(wakes_in=HOUR)).state is HeldState.HELD
            done &= queue.begin_now("plan-1").begins_at is None
            done &= queue.withdraw("plan-1")
            status = 0 if done else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    told = slurm.ask("squeue", "--noheader", "--states=all", "--format=%U %T %k")
    assert f"{NOBODY} CANCELLED wattmesh:{RUN}.plan-1" in told
