"""A training on two hosts, moved by orders from 2x2 ranks to 1x2 and back: the same losses.

Real supervisors, real torchrun agents and gloo over the cable; the ranks are forked (torch is
imported once).
"""

import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import block
from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, DP2_TP2, DP4, PATIENT, Run, Zygote, worst_difference
from tests.hook.tiny import Options
from tests.hosts.namespaces import REPOSITORY, TwoHosts
from tests.hosts.run_on_hosts import HostedRun
from tests.slurm.jobs.training import rank_server
from wattmesh.integrations import torchrun
from wattmesh.reconfig.launcher.launch_book import BookedState
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import RESIZES, SUSPENDS, SwitchMode

TASK = REPOSITORY / "tests" / "slurm" / "jobs" / "task.py"
STEPS = 30


@pytest.fixture
def near() -> Iterator[Path]:
    """A folder with a short path for Unix sockets (the kernel allows 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="wm") as folder:
        yield Path(folder)


@pytest.fixture
def ranks(near: Path) -> Iterator[Path]:
    """The socket of a process that forks ranks."""
    with rank_server(near / "ranks.sock", "tests.hosts.ranks") as where:
        yield where


def test_a_training_moves_from_two_hosts_to_one_and_back_with_the_same_losses(
    two: TwoHosts, tmp_path: Path, near: Path, ranks: Path, zygote: Zygote
) -> None:
    """The second host has no rank meanwhile, and each move is proven to the daemon.

    fp32: at most 1e-5 from the run that never moved, as docs/convergence.md allows.
    """
    alone = Run(zygote, tmp_path / "alone", 2, steps=STEPS)
    assert alone.once() == 0, alone.log()
    out = tmp_path / "moved"
    options = Options(
        folder=str(out / "run"),
        out=str(out),
        steps=STEPS,
        layout=DP2_TP2.to_dict(),
        deadlines=PATIENT,
        wait_for={"10": "order-1", "20": "order-2"},
    )
    environment = {
        "TINY": options.to_text(),
        "RANK_LOGS": str(out),
        "WATTMESH_URL": f"unix://{near / 'd.sock'}",
        "OMP_NUM_THREADS": "1",
    }
    run = HostedRun(two, out, [str(TASK), str(ranks)], nproc=2, environment=environment)
    wishes = [
        Wish(layout=DP2, ranks=(0, 1), at=10, mode=SwitchMode.RESIZE),
        Wish(layout=DP4, ranks=(0, 1, 2, 3), at=20, mode=SwitchMode.RESIZE),
    ]
    with FakeDaemon(near / "d.sock", out, wishes) as daemon:
        try:
            run.start(1)
            run.start(0)
            run.wait(run.is_over, "the end")
        finally:
            run.end()
    assert run.statuses == {0: [0], 1: [0]}, run.where()
    lines = [json.loads(line) for line in (out / "losses.jsonl").read_text().splitlines()]
    assert worst_difference({each["step"]: each["loss"] for each in lines}, alone.losses()) <= 1e-5
    hosts = {each["layout"]: each["host"] for each in lines}
    assert set(hosts) == {str(DP2_TP2), str(DP2), str(DP4)}, run.where()
    assert hosts[str(DP2)] == "host-0"
    plans = dict.fromkeys(each.switch_id for each in daemon.heard.transitions)
    assert [daemon.states(plan)[-1] for plan in plans] == [SwitchState.CONFIRMED] * 2
    registers = daemon.heard.registers
    assert [each.world_size for each in registers] == [4, 2, 4]
    assert {SUSPENDS, RESIZES} <= set(registers[0].capabilities)
    # Each move had its way back held, which was let go once the ordered launch had begun.
    assert [each.state for each in run.book()] == [BookedState.WITHDRAWN, BookedState.BEGUN] * 2


def test_the_lines_of_the_page_are_two_hosts_of_one_run() -> None:
    """Read by the command's own parser: they differ in which host it is, and that is all."""
    lines = block("docs/attach.md", "Several hosts").splitlines()
    read = [vars(torchrun._parser().parse_args(shlex.split(each)[3:])) for each in lines]
    assert [each.pop("host") for each in read] == [0, 1]
    assert read[0] == read[1]
    assert (read[0]["hosts"], read[0]["command"]) == (2, ["--", "train.py"])
