"""The epilog of docs/slurm.md on a real Slurm: clocks are given back with the job, job by job."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.safety.node import Node
from tests.daemon.waiting import wait_for
from tests.slurm.cluster import Cluster
from tests.slurm.jobs.paper import REPOSITORY
from wattmesh.integrations.slurm import epilog
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import LeaseKind, Wish

ACTUATOR = """
import sys
from wattmesh.telemetry.actuator import __main__ as actuator, server
server.BEAT_S = 3600.0
sys.exit(actuator.main(["--config", sys.argv[1]]))
"""
"""An actuator that looks only when it is asked to, so that only the epilog can have given back."""


@pytest.fixture
def node() -> Iterator[Node]:
    """A node with two GPUs whose actuator has no heartbeat."""
    with Node() as made:
        made.actuator = subprocess.Popen([sys.executable, "-c", ACTUATOR, str(made.config)])
        made.started.append(made.actuator)
        made.until(made.answers)
        yield made


def script_of_the_page(node: Node, limit_s: float) -> str:
    """The epilog as the page has it, for the socket and the Python of the test."""
    page = (REPOSITORY / "docs" / "slurm.md").read_text("utf-8")
    script: str
    (script,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert "/opt/wattmesh/bin/python" in script
    python = script.replace("/opt/wattmesh/bin/python", sys.executable)
    where = f"--socket {node.folder}/actuator.sock --limit {limit_s}"
    return python.replace(" epilog\n", f" epilog {where} 2>> {node.folder}/epilog.log\n")


def job_on(slurm: Cluster, node: Node, folder: Path, gpu: int) -> tuple[int, int]:
    """Start a job that computes on a GPU; gives its id and the pid of what computes."""
    script, told = folder / f"job{gpu}.sh", folder / f"pid{gpu}"
    script.write_text(f"#!/bin/sh\necho $$ > {told}.new\nmv {told}.new {told}\nexec sleep 600\n")
    words = ("--nodelist=n1", "--gpus=1", "--ntasks=1", f"--output={folder}/job{gpu}.out")
    job = slurm.submit(script, *words)
    wait_for(told.exists, "that it computes")
    pid = int(told.read_text())
    told.unlink()
    node.fake.gpus[gpu].load(1.0)
    node.fake.gpus[gpu].process(pid)
    return job, pid


def wish(node: Node, pids: dict[int, int]) -> None:
    """Lock each GPU for a run of its own."""
    wishes = [
        Wish(
            gpu_uuid=node.uuid(gpu),
            kind=LeaseKind.ECONOMY,
            holder=f"run-{gpu}",
            clock_mhz=1200,
            lease_s=60.0,
        )
        for gpu in pids
    ]
    claims = {
        f"run-{gpu}": ProcessClaim(uids=frozenset({0}), pids=frozenset({pid}))
        for gpu, pid in pids.items()
    }
    node.client.apply(node.desired(*wishes), claims)


def locks(node: Node) -> list[int | None]:
    """The clock lock of each GPU, as the driver has it."""
    return [each.lock_mhz for each in node.truths()]


def test_a_jobs_clocks_are_given_back_before_its_node_is_free(
    slurm: Cluster, node: Node, tmp_path: Path
) -> None:
    """By scancel or by a kill; the other job of the node keeps its own until it ends itself."""
    with slurm.on_end(script_of_the_page(node, 10.0)):
        jobs = [job_on(slurm, node, tmp_path, gpu) for gpu in (0, 1)]
        pids = {gpu: pid for gpu, (_, pid) in enumerate(jobs)}
        wish(node, pids)
        assert locks(node) == [1200, 1200]
        slurm.ask("scancel", str(jobs[0][0]))
        wait_for(lambda: locks(node) == [None, 1200], f"GPU 0 alone: {locks(node)}")
        slurm.ask("scancel", "--signal=KILL", "--full", str(jobs[1][0]))
        wait_for(slurm.is_ready, "that the node is free")
        assert locks(node) == [None, None]
    assert "not known" not in (node.folder / "epilog.log").read_text()


def test_a_node_is_not_failed_for_an_actuator_that_does_not_answer(
    slurm: Cluster, node: Node, tmp_path: Path
) -> None:
    """Stopped, it is waited for as long as was said; dead, not at all; the node is free again."""
    assert node.actuator is not None
    with slurm.on_end(script_of_the_page(node, 1.0)):
        for how in (signal.SIGSTOP, signal.SIGKILL):
            job, _ = job_on(slurm, node, tmp_path, 0)
            node.actuator.send_signal(how)
            slurm.ask("scancel", str(job))
            wait_for(slurm.is_ready, "that the node is free")
            node.actuator.send_signal(signal.SIGCONT)
    said = (node.folder / "epilog.log").read_text()
    assert said.count("whether GPUs were given back is not known") == 2, said


@pytest.mark.parametrize("limit", ["nan", "-5", "1e300"])
def test_a_limit_that_is_none_fails_no_node(limit: str, tmp_path: Path) -> None:
    """Whatever it is called with that can be read, it ends with status 0, and does its work."""
    words = ("epilog", f"--socket={tmp_path}/none.sock", f"--limit={limit}")
    done = subprocess.run(
        [sys.executable, "-m", "wattmesh.integrations.slurm", *words],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert b"Traceback" not in done.stderr
    assert b"is not above 0 and at most 600 s; it takes at most 10 s" in done.stderr
    # The work: an actuator is looked for. Without any limit nothing was, and nothing was said.
    assert b"no actuator answers" in done.stderr


def test_what_still_computes_keeps_its_clock_and_is_named(node: Node, tmp_path: Path) -> None:
    """The log says so after three looks; it may be repeated, and costs a second and a half."""
    process = node.job(gpus=[0])
    wish(node, {0: process.pid})
    said: list[str] = []
    began_s = time.monotonic()
    assert epilog.give_back(node.folder / "actuator.sock", limit_s=30.0, say=said.append)
    assert said == [f"clocks are still locked where a run computes: {node.uuid(0)}"]
    assert locks(node) == [1200, None]
    process.kill()
    process.wait()
    for _ in range(2):
        assert epilog.give_back(node.folder / "actuator.sock", limit_s=30.0, say=said.append)
        assert locks(node) == [None, None]
    assert len(said) == 1
    assert time.monotonic() - began_s >= 2 * epilog.AGAIN_S
