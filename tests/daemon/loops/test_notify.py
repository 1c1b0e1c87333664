"""sd_notify to a real datagram socket, by path and by abstract name."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.clocks import SteppedClock
from wattmesh.controller.process.loops import Loop
from wattmesh.controller.process.notify import Notifier, SystemdWatchdog


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A service manager's socket, and how it is written in NOTIFY_SOCKET."""
    name = f"wattmesh-test-{os.getpid()}"
    address = str(tmp_path / "notify") if request.param == "path" else f"@{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}" if address.startswith("@") else address)
        listener.settimeout(5.0)
        yield address, listener


def test_every_state_is_told_in_the_protocols_words(manager: tuple[str, socket.socket]) -> None:
    """READY, STATUS, RELOADING with its time, WATCHDOG and STOPPING arrive as sd_notify(3) says."""
    address, listener = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    notifier.ready()
    notifier.status("holding:\nthe grid\nfalls")
    notifier.reloading()
    notifier.alive()
    notifier.stopping()
    told = [listener.recv(4096).decode() for _ in range(5)]
    assert told[0] == "READY=1"
    assert told[1] == "STATUS=holding: the grid falls"
    kind, _, since = told[2].partition("\nMONOTONIC_USEC=")
    assert kind == "RELOADING=1"
    assert int(since) > 0
    assert told[3:] == ["WATCHDOG=1", "STOPPING=1"]


def test_without_a_service_manager_nothing_happens() -> None:
    """A daemon started by hand tells nobody, and one whose manager is gone does not fail."""
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).ready()


def test_the_watchdog_is_fed_only_for_progress_of_every_loop(
    manager: tuple[str, socket.socket],
) -> None:
    """A loop that stands still, or ends in bugs, lets the watchdog bark."""
    address, listener = manager
    listener.settimeout(0.2)
    clock = SteppedClock()
    bugs: list[ZeroDivisionError] = []

    def body() -> None:
        if bugs:
            raise bugs[0]

    cycle, sampler = (Loop(name, 1.0, body, clock.clock) for name in ("cycle", "sampler"))
    watchdog = SystemdWatchdog(
        Notifier({"NOTIFY_SOCKET": address}),
        [lambda: cycle.state.last_progress_s, lambda: sampler.state.last_progress_s],
    )
    cycle.turn()
    assert not watchdog.feed()
    sampler.turn()
    assert watchdog.feed()
    assert listener.recv(64) == b"WATCHDOG=1"
    assert not watchdog.feed()
    clock.pass_s(1.0)
    bugs.append(ZeroDivisionError())
    cycle.turn()
    sampler.turn()
    assert not watchdog.feed()
    with pytest.raises(TimeoutError):
        listener.recv(64)


def test_the_managers_patience_is_read_for_this_process_only() -> None:
    """WATCHDOG_USEC of another process is not ours."""
    assert Notifier({"WATCHDOG_USEC": "3000000"}).watchdog_s == 3.0
    mine = {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    assert Notifier(mine).watchdog_s == 3.0
    assert Notifier({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}).watchdog_s is None
    assert Notifier({"WATCHDOG_USEC": "soon"}).watchdog_s is None
