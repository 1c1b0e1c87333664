"""Whole agents against a real daemon: whatever is killed or cut, the sums equal the truth."""

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.agent.nodes import AGENTS, books, node
from tests.agent.proxy import Fault, proxy
from tests.builders import messages
from tests.daemon.process import ask, daemon
from tests.daemon.waiting import wait_for

UNIX = "unix://{}/w.sock"


def test_agents_of_several_nodes_add_up_to_the_truth(tmp_path: Path) -> None:
    """Two nodes with their own libraries on one machine; every GPU to the millijoule."""
    address = UNIX.format(tmp_path)
    with (
        daemon(tmp_path, AGENTS) as running,
        books(running) as ledger,
        node(tmp_path, "n1", address) as one,
        node(tmp_path, "n2", address, gpus=3) as two,
    ):
        for each in (one, two):
            each.start()
            ledger.wait_known(each)
        one.draw(400.0)
        two.draw(250.0)
        wait_for(lambda: min(ledger.booked().values(), default=0) > 50_000, "some energy")
        all_w = 2 * 400.0 + 3 * 250.0
        wait_for(
            lambda: running.status()["power"]["total_w"] == pytest.approx(all_w, rel=0.01),
            "all GPUs on the screen",
        )
        assert running.status()["power"]["gpus"] == 5
        one.draw(0.0)
        two.draw(0.0)
        ledger.wait_whole(one, two)
        assert {each.name: each.end() for each in (one, two)} == {"n1": 0, "n2": 0}
        assert set(ledger.lines(one.gpus.gpu(0).uuid)) == {("", "idle")}


def test_a_controller_that_is_killed_and_comes_back_misses_nothing(tmp_path: Path) -> None:
    """What was measured meanwhile waits in the outbox."""
    address = UNIX.format(tmp_path)
    with node(tmp_path, "n1", address) as one:
        with daemon(tmp_path, AGENTS) as running, books(running) as ledger:
            one.start()
            ledger.wait_known(one)
            one.draw(300.0)
            wait_for(lambda: min(ledger.booked().values(), default=0) > 20_000, "some energy")
            running.process.kill()
            running.process.wait()
            before = dict(ledger.booked())
            wait_for(lambda: min(one.truth().values()) > 200_000, "energy nobody asks for")
            assert ledger.booked() == before
        with daemon(tmp_path, AGENTS) as running, books(running) as ledger:
            one.draw(0.0)
            ledger.wait_whole(one)


def test_an_agent_that_is_killed_books_the_outage_from_the_hardware_counter(tmp_path: Path) -> None:
    """And one that lost its outbox too: the controller knows up to where it had delivered."""
    address = UNIX.format(tmp_path)
    with (
        daemon(tmp_path, AGENTS) as running,
        books(running) as ledger,
        node(tmp_path, "n1", address) as one,
    ):
        one.start()
        ledger.wait_known(one)
        one.draw(300.0)
        for lost in (False, True):
            beyond(lambda: min(ledger.booked().values(), default=0), 1)
            one.end(signal.SIGKILL)
            beyond(lambda: min(one.truth().values()), 100_000)
            if lost:
                for each in one.folder.glob("agent.db*"):
                    each.unlink()
            one.start()
        one.draw(0.0)
        ledger.wait_whole(one)


def test_whatever_the_network_does_everything_arrives_once(tmp_path: Path) -> None:
    """A connection that is refused, hangs, breaks off, answers nonsense, or loses answers."""
    with (
        daemon(tmp_path, AGENTS) as running,
        books(running) as ledger,
        proxy(tmp_path / "net", running.socket) as net,
        node(tmp_path, "n1", f"unix://{tmp_path}/net") as one,
    ):
        one.start()
        ledger.wait_known(one)
        for fault in Fault:
            one.draw(300.0)
            beyond(lambda: min(ledger.booked().values(), default=0), 1)
            net.met, net.fault = 0, fault
            wait_for(lambda: net.met >= 3, "three calls that met the fault")
            net.fault = None
            one.draw(0.0)
            ledger.wait_whole(one)


def test_a_full_disk_under_the_outbox_loses_nothing(tmp_path: Path) -> None:
    """What cannot be written waits in memory, and the counters cover it."""
    address = UNIX.format(tmp_path)
    with (
        daemon(tmp_path, AGENTS) as running,
        books(running) as ledger,
        node(tmp_path, "n1", address) as one,
    ):
        one.start()
        ledger.wait_known(one)
        one.draw(300.0)
        wait_for(lambda: min(ledger.booked().values(), default=0) > 20_000, "some energy")
        one.fill_disk(True)
        wait_for(
            lambda: min(one.truth().values()) > max(ledger.booked().values()) + 500_000,
            "energy that cannot be written",
        )
        one.fill_disk(False)
        one.draw(0.0)
        ledger.wait_whole(one)


def test_a_driver_reload_books_the_gap_from_the_power(tmp_path: Path) -> None:
    """Counters at zero again: never negative, never twice, and what was drawn lies in bounds."""
    address = UNIX.format(tmp_path)
    with (
        daemon(tmp_path, AGENTS) as running,
        books(running) as ledger,
        node(tmp_path, "n1", address, gpus=1) as one,
    ):
        gpu = one.gpus.gpu(0)
        one.start()
        ledger.wait_known(one)
        one.draw(300.0)
        wait_for(lambda: ledger.booked().get(gpu.uuid, 0) > 100_000, "some energy")
        one.gpus.reload_driver()
        one.draw(300.0)
        wait_for(lambda: ledger.booked().get(gpu.uuid, 0) > 250_000, "energy after the reload")
        one.draw(0.0)
        wait_for(
            lambda: (
                [each.energy_mj for each in ledger.journal.nodes.baselines("n1")]
                == list(one.truth().values())
            ),
            "the newest counter",
        )
        drawn_mj = round(gpu.truth().energy_j * 1000)
        rows = ledger.journal.ledger.energy()
        booked = sum(row.energy_mj or 0 for row in rows)
        assert all((row.energy_mj or 0) >= 0 for row in rows)
        slack_mj = 60_000  # 0.2 s at 300 W: what lies between two samples around the reload
        assert abs(booked - drawn_mj) <= sum(row.upper_mj for row in rows) + slack_mj


def test_a_run_pays_while_its_process_computes_and_not_for_a_strangers(tmp_path: Path) -> None:
    """Registered through the relay: the agent attests the owner; zombies and strangers are seen."""
    address = UNIX.format(tmp_path)
    with (
        daemon(tmp_path, AGENTS) as running,
        books(running) as ledger,
        node(tmp_path, "n1", address) as one,
    ):
        mine, shared = (gpu.uuid for gpu in one.gpus.gpus)
        one.start()
        ledger.wait_known(one)
        job = one.job(0, 1)
        register = messages.register(gpus=(mine, shared), ranks=(0, 1), world_size=2)
        answer = ask(one.relay, "POST", f"/v1/runs/{messages.RUN}/register", register)
        assert answer.status == 200, answer.body
        row = ledger.journal.runs.all(facts_now())[0]
        assert row.owner_uid == os.geteuid()
        one.draw(200.0)
        run = (messages.RUN, "run")
        wait_for(lambda: ledger.lines(mine).get(run, 0) > 20_000, "the run's energy")
        # A process of init, which is another user's or at least another job's: not the run's.
        stranger = one.job(1, uid=12_345) if os.geteuid() == 0 else None
        if stranger is None:
            one.gpus.gpu(1).process(1, lingers=True)
        wait_for(
            lambda: ledger.lines(shared).get(("", "unattributed"), 0) > 20_000,
            "the shared GPU unattributed",
        )
        job.kill()  # and stays as a zombie: nobody waits for it
        idle = ledger.lines(mine).get(("", "idle"), 0)
        wait_for(lambda: ledger.lines(mine).get(("", "idle"), 0) > idle + 20_000, "an idle GPU")
        paid = ledger.lines(mine)[run]
        # Requeued: a new launch, a new process, and it pays again.
        one.job(0)
        again = messages.register(
            gpus=(mine, shared),
            ranks=(0, 1),
            world_size=2,
            attempt=2,
            incarnation="incarnation-2",
            supersedes="incarnation-1",
        )
        path = f"/v1/runs/{messages.RUN}/register"
        assert ask(one.relay, "POST", path, again).status == 200
        wait_for(lambda: ledger.lines(mine)[run] > paid + 20_000, "the requeued run's energy")
        one.draw(0.0)
        ledger.wait_whole(one)


def beyond(amount_mj: Callable[[], int], more_mj: int) -> None:
    """Wait until so much more has been drawn or booked."""
    now_mj = amount_mj()
    wait_for(lambda: amount_mj() >= now_mj + more_mj, f"{more_mj} mJ more")


def facts_now() -> datetime:
    """Give the wall time."""
    return datetime.now(UTC)
