"""A training on a real Slurm: layouts, sizes, sleep, and the losses of a run left alone."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, DP2_TP2, DP4, PATIENT, worst_difference
from tests.hook.tiny import Options
from tests.slurm.cluster import ENDED, Cluster
from tests.slurm.paper import REPOSITORY
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire import RESIZES, SUSPENDS, SwitchMode

TASK = Path(__file__).with_name("task.py")
SCRIPT = """#!/bin/bash
#SBATCH --gpus-per-node=2
#SBATCH --output={out}/job-%j.out
cd {repository}
{python} -m wattmesh.integrations.slurm run --checkpoint-dir {folder} --most-per-node 2 \
    --address 127.0.0.1 -- {task} {socket}
"""
FOUR, TWO = (0, 1, 2, 3), (0, 1)
HOUR_S = 3600.0


@pytest.fixture
def places() -> Iterator[Path]:
    """A folder with a short path for Unix sockets (the kernel allows 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="wm") as folder:
        yield Path(folder)


@pytest.fixture
def ranks(places: Path) -> Iterator[Path]:
    """The socket of a process that forks ranks."""
    where = places / "ranks.sock"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = [sys.executable, "-m", "tests.slurm.rank_server", str(where)]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment, cwd=REPOSITORY)
    try:
        wait_for(where.exists, "the rank server")
        yield where
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


def _losses(out: Path) -> dict[int, float]:
    path = out / "losses.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


class Training:
    """One run of the tiny job as Slurm jobs."""

    def __init__(self, slurm: Cluster, out: Path, ranks: Path, daemon: Path | None) -> None:
        """Prepare; `daemon`: the socket of the one that it speaks to."""
        self.slurm, self.out = slurm, out
        out.mkdir(parents=True)
        self.folder = out / "run"
        marks = {str(step): f"order-{n}" for n, step in enumerate((10, 20, 30), 1)}
        options = Options(
            folder=str(self.folder),
            out=str(out),
            steps=45,
            boundary_every=5,
            layout=DP4.to_dict(),
            deadlines=PATIENT,
            wait_for=marks if daemon else {},
        )
        self.environment = {"TINY": options.to_text(), "RANK_LOGS": str(out)}
        if daemon:
            self.environment["WATTMESH_URL"] = f"unix://{daemon}"
        self.script = out / "train.sh"
        self.script.write_text(
            SCRIPT.format(
                out=out,
                repository=REPOSITORY,
                python=sys.executable,
                folder=self.folder,
                task=TASK,
                socket=ranks,
            )
        )

    def submit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Submit the first job: four ranks on two nodes."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        self.slurm.submit(self.script, "--nodes=2", "--ntasks-per-node=2")

    def where(self) -> str:
        """What is known, for who reads a failure."""
        logs = [*sorted(self.out.glob("*.out")), *sorted(self.out.glob("*.log"))]
        said = "\n".join(f"--- {each.name}\n{each.read_text()[-3000:]}" for each in logs)
        return f"{self.slurm.states()}\n{said}"

    def wait_until(self, step: int) -> None:
        """Wait until a step was trained and every job has ended."""

        def over() -> bool:
            states = self.slurm.states().values()
            return step in _losses(self.out) and all(each in ENDED for each in states)

        try:
            wait_for(over, f"step {step}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.where()}") from error


def test_a_training_moves_through_layouts_sizes_and_sleep_with_the_same_losses(
    slurm: Cluster,
    tmp_path: Path,
    places: Path,
    ranks: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four ranks on two nodes, another layout there, two on one, asleep, woken as four on two.

    The order to wake, an hour before the alarm and in another size, is fetched by `wake`, which the
    user runs. The daemon hears of every move that it was carried out and proven.
    """
    moved = Training(slurm, tmp_path / "moved", ranks, places / "d.sock")
    wishes = [
        Wish(layout=DP2_TP2, ranks=FOUR, at=10, mode=SwitchMode.RESTART),
        Wish(layout=DP2, ranks=TWO, at=20, mode=SwitchMode.RESIZE),
        Wish(layout=DP2, ranks=TWO, at=30, mode=SwitchMode.SUSPEND, wakes_in_s=HOUR_S),
        Wish(layout=DP4, ranks=FOUR, at=30, mode=SwitchMode.RESUME),
    ]
    with FakeDaemon(places / "d.sock", moved.out, wishes) as daemon:
        moved.submit(monkeypatch)
        wait_for(
            lambda: any(each.reason == "suspended" for each in daemon.heard.finishes),
            "that it sleeps",
        )
        wait_for(lambda: _waits_alone(slurm), "that the job has left")
        wake = (sys.executable, "-m", "wattmesh.integrations.slurm", "wake", "--watch")
        more = (f"--checkpoint-dir={moved.folder}",)
        told = subprocess.run(
            [*wake, *more], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        assert "the run is woken: the test asks for it" in told.stderr, told.stderr
        moved.wait_until(45)
    still = Training(slurm, tmp_path / "still", ranks, None)
    still.submit(monkeypatch)
    still.wait_until(45)
    assert worst_difference(_losses(moved.out), _losses(still.out)) <= 1e-5
    plans = dict.fromkeys(each.plan for each in daemon.heard.transitions)
    assert [daemon.states(plan)[-1] for plan in plans] == [SwitchState.CONFIRMED] * len(wishes)
    first, *_ = daemon.heard.registers
    assert {SUSPENDS, RESIZES} <= set(first.capabilities)
    sizes = [each.world_size for each in daemon.heard.registers]
    assert sizes == [4, 4, 2, 4]
    assert len({each.scheduler_key for each in daemon.heard.registers}) == 3
    assert [each.reason for each in daemon.heard.finishes][-2:] == ["suspended", "done"]


def _waits_alone(slurm: Cluster) -> bool:
    """Say whether one job waits, and all others have ended."""
    live = [each for each in slurm.states().values() if each not in ENDED]
    return live == ["PENDING"]
