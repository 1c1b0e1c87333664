"""A real daemon changes the size of a training on the cluster, and is killed meanwhile."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.process import daemon
from tests.daemon.waiting import wait_for
from tests.hook.harness import DP4, PATIENT, worst_difference
from tests.hook.tiny import Options
from tests.kubernetes.cluster import Cluster, rendered
from tests.slurm.jobs.training import PATIENCE_S, TASK, losses, rank_server
from tests.slurm.test_daemon import Site, write_site
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.launch_book import BookedState, LaunchBook
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import SwitchMode

STEPS = 30


@pytest.fixture
def places() -> Iterator[Path]:
    """A folder with a short path for Unix sockets (the kernel allows 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="wm") as folder:
        yield Path(folder)


class Training:
    """One run of the tiny job: two pods with two ranks each, which a rank server forks."""

    def __init__(self, cluster: Cluster, ranks: Path, url: str, **environment: str) -> None:
        """Prepare; `apply` starts it."""
        self.cluster, self.out = cluster, cluster.folder / "tiny"
        self.out.mkdir()
        self.folder = RunFolder(self.out / "run")
        told = environment_of(
            self.out, DP4, orders_by={"10": 1, "20": 2}, wait_for={str(STEPS - 1): "go"}
        )
        words = (str(TASK), str(ranks))
        job = rendered("tiny", self.folder.path, *words, hosts=2)
        self.job: dict[str, Any] = json.loads(json.dumps(job).replace("--nproc=1", "--nproc=2"))
        pod = self.job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        told |= {"WATTMESH_URL": url, **environment}
        pod["containers"][0]["env"] += [{"name": n, "value": v} for n, v in told.items()]

    def apply(self) -> None:
        """Create the job, as its user does."""
        self.cluster.apply(self.job)

    def losses(self) -> dict[int, float]:
        """The loss of each step so far."""
        return losses(self.out)

    def where(self) -> str:
        """What is known, for who reads a failure."""
        logs = "\n".join(each.read_text()[-3000:] for each in sorted(self.out.glob("*.log")))
        book = "\n".join(map(str, LaunchBook(self.folder).read()))
        return f"{self.cluster.states()}\n{book}\n{self.cluster.said()}\n{logs}"


def environment_of(out: Path, layout: Layout, **options: Any) -> dict[str, str]:
    """What a rank of the tiny job reads."""
    told = Options(
        folder=str(out / "run"),
        out=str(out),
        steps=STEPS,
        boundary_every=5,
        layout=layout.to_dict(),
        deadlines=PATIENT,
        **options,
    )
    return {
        "TINY": told.to_text(),
        "RANK_LOGS": str(out),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def train_alone(out: Path, ranks: Path) -> dict[int, float]:
    """Train on one rank that never moves; gives its losses."""
    out.mkdir()
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    subprocess.run(
        [sys.executable, str(TASK), str(ranks)],
        env={**os.environ, **environment_of(out, Layout()), **world, "MASTER_PORT": str(port)},
        check=True,
        timeout=PATIENCE_S,
    )
    return losses(out)


def test_a_daemon_moves_a_training_to_fewer_pods_and_back(
    cluster: Cluster, tmp_path: Path, places: Path
) -> None:
    """By its policy to one pod of two, by order back in another layout.

    The leader of the smaller job is killed as it begins, and the daemon before the run leaves for
    the larger one. The next daemon hears it all, and the losses are those of a run that never
    moved.
    """
    more = write_site(places)
    with rank_server(places / "ranks.sock", "tests.slurm.jobs.rank_server") as ranks:
        moved = Training(
            cluster,
            ranks,
            f"unix://{places}/w.sock",
            DIES="new:after:book:1",
            DIED=str(tmp_path / "died"),
        )
        with daemon(places, more) as served:
            site = Site(served, moved)
            moved.apply()
            site.wait(lambda: site.run().get("point") == "wide", "that it trains")
            site.wait_at("small")
            site.order("mixed")
            site.wait_begun("mixed")
            served.process.kill()
        wait_for(lambda: max(moved.losses()) >= STEPS - 2, "that it trains on", PATIENCE_S)
        with daemon(places, more) as served:
            site = Site(served, moved)
            site.wait_at("mixed")
            (moved.out / "go").touch()
            site.wait(lambda: site.run().get("state", "finished") == "finished", "its end")
        still = train_alone(tmp_path / "still", ranks)
    assert worst_difference(moved.losses(), still) <= 1e-5
    assert (tmp_path / "died").exists(), moved.where()
    began = [each for each in LaunchBook(moved.folder).read() if each.state is BookedState.BEGUN]
    assert [each.ranks for each in began] == [4, 2, 4], moved.where()
    judge(places)


def judge(places: Path) -> None:
    """Read what the journal says of it all."""
    journal = Journal.open(f"sqlite:///{places}/journal.db")
    try:
        (row,) = journal.runs.all(datetime.now(UTC))
        assert (row.finish_reason, row.frozen, row.outage_from) == ("done", "", None)
        history = journal.switches.history(row.run)
        assert [
            (each.from_point, each.to_point, each.order.mode, each.requested_by, each.state)
            for each in reversed(history)
        ] == [
            ("wide", "small", SwitchMode.RESIZE, "policy", SwitchState.CONFIRMED),
            ("small", "mixed", SwitchMode.RESIZE, "operator", SwitchState.CONFIRMED),
        ]
    finally:
        journal.close()
