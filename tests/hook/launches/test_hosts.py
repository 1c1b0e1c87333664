"""One job on two hosts: it changes shape across them, and outlives the loss of one.

The hosts are namespaces joined by a cable that can be cut (see `hosts.py`); each has its own
network, hostname and /dev/shm, and they share the run's folder alone.
"""

import os
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import (
    DP2,
    DP4,
    PATIENT,
    TP2,
    Run,
    Zygote,
    short,
    until,
    worst_difference,
)
from tests.hook.switches.test_switch import GOOD
from tests.hook.tiny import Fault
from wattmesh.reconfig.launch.peers import RankProcess
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState

DP3 = Layout(dp_shard=3)
BATCH = 12
"""Samples per step: divisible by 4, 2 and 3 ranks."""


def on_two_hosts(zygote: Zygote, folder: Path, **options: object) -> Run:
    """A run of four ranks, 0 and 1 on the first host, 2 and 3 on the second."""
    run = Run(zygote, folder, 4, batch=BATCH, **options)
    run.later = PATIENT
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
    # Of a host's two ranks one has written what both staged.
    kept = sorted(each.name for each in run.checkpoints.glob("step-*"))
    assert kept == ["step-00000010", "step-00000015", "step-00000020"], run.log()
    assert {line["host"] for line in run.lines()} == {"host-0", "host-1"}
    assert [each.reason for each in daemon.heard.finishes] == ["done"]


def test_a_host_is_lost_and_the_run_goes_on_with_what_is_left(
    zygote: Zygote, tmp_path: Path, alone: dict[int, float]
) -> None:
    """Nothing is heard of the second host any more: the first leaves, and trains on by itself."""
    run = on_two_hosts(
        zygote, tmp_path, layout=DP4, steps=15, boundary_every=5, wait_for={"8": "go"},
        deadlines=short("train"),
    )  # fmt: skip
    run.hosts.append((2,))
    losing = threading.Thread(target=lose_the_second_host, args=(run,))
    losing.start()
    assert run.supervised() == 0, (run.said, run.log())
    losing.join()
    assert run.layouts() == ["dp4", "dp2"]
    assert [line["step"] for line in run.lines() if line["attempt"] == 2] == list(range(6, 16))
    trained = {step: alone[step] for step in range(1, 16)}
    assert worst_difference(run.losses(), trained) <= 1e-5


def test_a_host_that_is_parked_whole_ends_when_nothing_is_heard_any_more(
    zygote: Zygote, tmp_path: Path, alone: dict[int, float]
) -> None:
    """Parked ranks have no deadline of their own: the silence of the store ends them."""
    run = on_two_hosts(
        zygote, tmp_path, layout=DP2, steps=15, boundary_every=5, wait_for={"8": "go"}
    )
    run.change(deadlines={**short(), "silence_s": 6.0})
    run.launch({})
    until(lambda: len(run.lines()) >= 7, "step 7")
    os.kill(zygote.agents(run.launches[0])[0], signal.SIGUSR1)
    note = run.checkpoints / "failures" / "rank-2.json"
    other = run.checkpoints / "failures" / "rank-3.json"
    until(lambda: note.exists() or other.exists(), "the second host's ranks have left")
    words = (note if note.exists() else other).read_text()
    assert "has heard nothing from the launch's store at 10.213.0.1" in words
    assert "parked at step 0" in words
    (run.out / "go").touch()
    zygote.wait(run.launches[0])
    # The first host misses them in turn, or has finished before.
    run.hosts = [(2,)]
    assert run.supervised() == 0, (run.said, run.log())
    trained = {step: alone[step] for step in range(1, 16)}
    assert worst_difference(run.losses(), trained) <= 1e-5


def test_hosts_of_one_name_are_told_apart() -> None:
    """A pid of another kernel or namespace is never looked up here, whatever the host is called."""
    here = RankProcess.here(0, "")
    namesake = replace(here, rank=1, pids="another boot pid:[1]")
    elsewhere = replace(here, rank=2, host=f"{here.host}-2")
    assert here.shares_host_with(replace(here, rank=3))
    assert not here.shares_host_with(namesake)
    assert not here.shares_host_with(elsewhere)


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


def test_a_cut_cable_ends_both_hosts_and_the_next_launch_resumes(
    zygote: Zygote, tmp_path: Path, alone: dict[int, float]
) -> None:
    """Packets vanish in the middle of a switch and no connection breaks: every deadline holds."""
    phases = ("save", "rebuild")
    with ThreadPoolExecutor(len(phases)) as pool:
        outcomes = list(pool.map(partial(cut_the_cable, zygote, tmp_path), phases))
    trained = {step: alone[step] for step in range(1, 16)}
    for phase, (run, daemon) in zip(phases, outcomes, strict=True):
        assert len(run.launches) == 2, (phase, run.said)
        assert f"in {phase} at step 10" in run.said[0], run.said
        assert run.layouts() == ["dp4"], phase
        assert worst_difference(run.losses(), trained) <= 1e-5, phase
        assert daemon.states()[-1] is SwitchState.ROLLED_BACK, phase


def cut_the_cable(zygote: Zygote, folder: Path, phase: str) -> tuple[Run, FakeDaemon]:
    """Train a run whose cable is cut in one phase of its switch."""
    fault = Fault(rank=2, at=phase, what="cut", after_step=10)
    wish = Wish(layout=TP2, ranks=(1, 2), at=10)
    with tempfile.TemporaryDirectory(prefix="wm") as near:
        socket_path = Path(near) / "d.sock"
        run = on_two_hosts(
            zygote, folder / phase, layout=DP4, steps=15, boundary_every=5, fault=fault,
            wait_for={"10": "order-1"}, deadlines=short(phase),
        ).with_daemon(socket_path)  # fmt: skip
        with FakeDaemon(socket_path, run.out, [wish]) as daemon:
            assert run.supervised() == 0, (run.said, run.log())
    return run, daemon
