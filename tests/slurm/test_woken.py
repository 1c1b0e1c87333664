"""Orders to wake a run that sleeps on a real Slurm: whoever dies with one, it is carried out."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.waiting import wait_for
from tests.hook.unix_http import UnixHttp
from tests.slurm.cluster import Cluster
from tests.slurm.jobs.paper import REPOSITORY, Paper
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.integrations.slurm import watcher
from wattmesh.integrations.slurm.client import SlurmClient
from wattmesh.integrations.slurm.wake import wake
from wattmesh.reconfig.client.orderbook import OrderBook
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.asleep import AsleepNote
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Order, Orders, SwitchMode

SLEEP: dict[str, Any] = {"do": "suspend", "for_s": 3600.0, "key": "plan-1"}
DONE = {"do": "done"}


class Daemon(UnixHttp):
    """A daemon that gives one order, and after that none; `then` is called as it is given."""

    def __init__(self, where: Path) -> None:
        """Serve at a path."""
        self.order: Order | None = None
        self.then: Callable[[], object] = lambda: None
        super().__init__(where)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer one call."""
        order, self.order = self.order, None
        if order is not None:
            self.then()
        return 200, json.dumps(Orders(order=order, epoch=1, mode="act").to_json()).encode()


@pytest.fixture
def daemon(places: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """One that clients of this process find."""
    where = places / "d.sock"
    monkeypatch.setenv("WATTMESH_URL", f"unix://{where}")
    with Daemon(where) as served:
        yield served


def asleep_run(slurm: Cluster, where: Path) -> tuple[Paper, AsleepNote]:
    """Give a run that sleeps for an hour."""
    run = Paper(slurm, where, SLEEP, DONE)
    job = run.submit()
    run.wait_until(1)
    slurm.reach(job, "COMPLETED")
    note = asleep.read(run.folder.asleep_file, AsleepNote)
    assert note is not None
    return run, note


def order(note: AsleepNote, ranks: int) -> Order:
    """Give an order to wake with a number of ranks."""
    return Order(
        switch_id="plan-2",
        epoch=1,
        run=note.run,
        attempt=note.attempt,
        point="other",
        layout=Layout(dp_shard=ranks),
        ranks=tuple(range(ranks)),
        not_before_step=0,
        valid_until_step=100,
        mode=SwitchMode.RESUME,
        reason="the test asks for it",
    )


def test_an_order_that_slurm_did_not_answer_is_carried_out_by_who_looks_next(
    slurm: Cluster, tmp_path: Path, daemon: Daemon
) -> None:
    """The controller stops as the order is given; the daemon gives it once, and nobody watches."""
    run, note = asleep_run(slurm, tmp_path)
    daemon.order = order(note, 4)
    controller = slurm.daemons["slurmctld"]
    daemon.then = lambda: controller.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(SourceUnavailable):
            wake(run.folder, SlurmClient(limit_s=1.0))
    finally:
        controller.send_signal(signal.SIGCONT)
    assert len(run.launches()) == 1
    woken = wake(run.folder, SlurmClient())
    assert woken is not None
    assert woken.key == "plan-2"
    run.wait_until(2)
    run.wait_ended()
    assert [each["ranks"] for each in run.launches()] == [2, 4], run.where()
    with pytest.raises(InputInvalid, match="no run sleeps"):
        wake(run.folder, SlurmClient())


def test_an_order_that_was_taken_at_any_step_is_taken_over(
    slurm: Cluster, tmp_path: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took it dies before it counts as taken, or after: the next one wakes the run.

    In the size of the order where Slurm takes that, else as it fell asleep: an order to wake is not
    slept over because its size is refused.
    """
    run, note = asleep_run(slurm, tmp_path)
    begin = OrderBook.begin

    def dies(*words: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    def dies_after(*words: Any, **named: Any) -> None:
        begin(*words, **named)
        raise KeyboardInterrupt

    for death in (dies, dies_after):
        run.folder.next_file.unlink(missing_ok=True)
        run.folder.orders_file.unlink(missing_ok=True)
        daemon.order = order(note, 64)
        monkeypatch.setattr(OrderBook, "begin", death)
        with pytest.raises(KeyboardInterrupt):
            wake(run.folder, SlurmClient())
        assert run.folder.next_file.exists(), death
    monkeypatch.setattr(OrderBook, "begin", begin)
    said: list[str] = []
    woken = wake(run.folder, SlurmClient(), say=said.append)
    assert woken is not None
    assert woken.key == "plan-1"
    assert "it wakes in the size in which it fell asleep" in said[-1]
    run.wait_until(2)
    run.wait_ended()
    assert [each["ranks"] for each in run.launches()] == [2, 2], run.where()


def test_a_run_whose_held_job_was_cancelled_is_not_said_to_begin(
    slurm: Cluster, tmp_path: Path, daemon: Daemon
) -> None:
    """Slurm knows the cancelled job for minutes; its user is told to submit the script."""
    run, _ = asleep_run(slurm, tmp_path)
    held = run.book()[-1].jobs[-1].rpartition("/")[2]
    slurm.ask("scancel", held)
    with pytest.raises(InputInvalid, match="submit the script again"):
        wake(run.folder, SlurmClient(), now=True)


def test_a_watcher_at_its_time_limit_is_followed_by_another(
    slurm: Cluster, tmp_path: Path, daemon: Daemon
) -> None:
    """Slurm warns it by a signal; one whose limit is too short to watch is followed by none."""
    run, _ = asleep_run(slurm, tmp_path)

    def watchers() -> list[str]:
        told = slurm.ask("squeue", "--noheader", f"--name={watcher.JOB_NAME}", "--format=%A")
        return told.split()

    for shortest_s, count in ((3600.0, 0), (0.0, 1)):
        program = (
            "import sys\n"
            "from wattmesh.integrations.slurm import __main__ as commands, watcher\n"
            f"commands.WATCH_S, watcher.SHORTEST_S = 0.1, {shortest_s}\n"
            "commands.say = lambda sentence: print(sentence, flush=True)\n"
            "sys.exit(commands.main(sys.argv[1:]))\n"
        )
        words = ("wake", "--watch", f"--checkpoint-dir={run.folder.path}", "--watcher=--time=30")
        process = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            cwd=REPOSITORY,
            env={**os.environ, **slurm.environment},
        )
        try:
            # It sleeps with its signal handler set once it has asked Slurm.
            wait_for(partial(_catches, process.pid, signal.SIGUSR1), "its handler")
            process.send_signal(signal.SIGUSR1)
            assert process.wait(60.0) == 0
        finally:
            process.kill()
        assert len(watchers()) == count
    script = (run.folder.path / "watch.sh").read_text()
    assert "--watcher=--time=30" in script


def _catches(pid: int, number: int) -> bool:
    """Say whether a process would outlive a signal, by the kernel's word."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << (number - 1))


def test_who_is_not_the_runs_user_is_told_so_and_not_to_submit_it_again(
    slurm: Cluster, tmp_path: Path
) -> None:
    """Slurm shows a user's own jobs alone: to another one the held job looked gone."""
    run, _ = asleep_run(slurm, tmp_path)
    stranger = SlurmClient()
    stranger.uid = 1234
    with pytest.raises(InputInvalid, match=r"none of yours \(uid 1234\).* is uid 0's, and only"):
        wake(run.folder, stranger, now=True)
    # The twin: its own user is not, and wakes it.
    assert wake(run.folder, SlurmClient(), now=True) is not None
    run.wait_until(2)
