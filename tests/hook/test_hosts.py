"""One job on two hosts: it changes shape across them, and outlives the loss of one.

The hosts are namespaces joined by a cable that can be cut (see `hosts.py`); each has its own
network, hostname and /dev/shm, and they share the run's folder alone.
"""

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, DP4, QUICK, TP2, Run, Zygote, until, worst_difference
from tests.hook.test_switch import GOOD
from tests.hook.tiny import Fault
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState

DP3 = Layout(dp_shard=3)
BATCH = 12
"""Samples per step: divisible by 4, 2 and 3 ranks."""


def on_two_hosts(zygote: Zygote, folder: Path, **options: object) -> Run:
    """A run of four ranks, 0 and 1 on the first host, 2 and 3 on the second."""
    run = Run(zygote, folder, 4, batch=BATCH, deadlines=QUICK, **options)
    run.hosts = [(2, 2)]
    return run


@pytest.fixture(scope="module")
def alone(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the same run on one host, left alone."""
    run = Run(zygote, tmp_path_factory.mktemp("alone"), 2, batch=BATCH, steps=25)
    assert run.once() == 0, run.log()
    return run.losses()


def test_a_job_goes_through_four_two_three_and_four_ranks_of_two_hosts(
    zygote: Zygote, tmp_path: Path, socket_path: Path, alone: dict[int, float]
) -> None:
    """The leader moves to the second host and back, the first one is parked whole meanwhile."""
    wishes = [
        Wish(layout=TP2, ranks=(3, 2), at=5),
        Wish(layout=DP3, ranks=(1, 2, 3), at=10),
        Wish(layout=DP4, ranks=(2, 0, 3, 1), at=15),
    ]
    waits = {"5": "order-1", "10": "order-2", "15": "order-3"}
    run = on_two_hosts(
        zygote, tmp_path, layout=DP4, steps=20, boundary_every=5, wait_for=waits
    ).with_daemon(socket_path)
    with FakeDaemon(socket_path, run.out, wishes) as daemon:
        assert run.once() == 0, run.log()
    assert run.layouts() == ["dp4", "tp2", "dp3", "dp4"]
    trained = {step: alone[step] for step in range(1, 21)}
    assert worst_difference(run.losses(), trained) <= 1e-5
    assert daemon.states() == GOOD * 3
    assert {line["host"] for line in run.lines()} == {"host-0", "host-1"}
    assert [each.reason for each in daemon.heard.finishes] == ["done"]


def test_a_host_is_lost_and_the_run_goes_on_with_what_is_left(
    zygote: Zygote, tmp_path: Path, alone: dict[int, float]
) -> None:
    """Nothing is heard of the second host any more: the first leaves, and trains on by itself."""
    run = on_two_hosts(
        zygote, tmp_path, layout=DP4, steps=15, boundary_every=5, wait_for={"8": "go"}
    )
    run.hosts.append((2,))
    losing = threading.Thread(target=lose_the_second_host, args=(run,))
    losing.start()
    assert run.supervised() == 0, (run.said, run.log())
    losing.join()
    assert run.layouts() == ["dp4", "dp2"]
    assert [line["step"] for line in run.lines() if line["attempt"] == 2] == list(range(6, 16))
    trained = {step: alone[step] for step in range(1, 16)}
    assert worst_difference(run.losses(), trained) <= 1e-5


def lose_the_second_host(run: Run) -> None:
    """Cut the cable, then end everything behind it, while the run waits before step 8."""
    until(lambda: len(run.lines()) >= 7, "step 7")
    launch = run.launches[0]
    agents, ranks = run.zygote.agents(launch), run.zygote.pids(launch, 4)
    run.change(layout=DP2.to_dict())
    os.kill(agents[0], signal.SIGUSR1)
    until((run.out / "cut").exists, "the cable is cut")
    for pid in (agents[1], ranks[2], ranks[3]):
        os.kill(pid, signal.SIGKILL)
    (run.out / "go").touch()


@pytest.mark.parametrize("at", ["save", "rebuild"])
def test_a_cut_cable_ends_both_hosts_and_the_next_launch_resumes(
    zygote: Zygote, tmp_path: Path, socket_path: Path, alone: dict[int, float], at: str
) -> None:
    """Packets vanish in the middle of a switch and no connection breaks: every deadline holds."""
    fault = Fault(rank=2, at=at, what="cut", after_step=10)
    run = on_two_hosts(
        zygote, tmp_path, layout=DP4, steps=15, boundary_every=5, fault=fault,
        wait_for={"10": "order-1"},
    ).with_daemon(socket_path)  # fmt: skip
    wish = Wish(layout=TP2, ranks=(1, 2), at=10)
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        assert run.supervised() == 0, (run.said, run.log())
    assert len(run.launches) == 2, run.said
    assert run.layouts() == ["dp4"]
    trained = {step: alone[step] for step in range(1, 16)}
    assert worst_difference(run.losses(), trained) <= 1e-5
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
