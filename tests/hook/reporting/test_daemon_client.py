"""The way to the daemon: calls that always end, reports that arrive once, in order."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import TP2, until
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig.client import daemon_client
from wattmesh.reconfig.client.daemon_client import DaemonClient
from wattmesh.reconfig.client.outbox import JobOutbox
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.link import DaemonLink, EndOfCalls
from wattmesh.reconfig.wire.messages import Finish, Progress, Register, Transition

RUN = "6d1c9d0e-0000-4000-8000-000000000001"

REGISTER = Register(
    run=RUN,
    name="job",
    incarnation="one",
    attempt=1,
    layout=Layout(dp_shard=2),
    ranks=(0, 1),
    world_size=2,
)
STEP = Transition(
    run=RUN,
    incarnation="one",
    attempt=1,
    switch_id="p",
    epoch=1,
    state=SwitchState.ANNOUNCED,
    step=10,
    elapsed_s=0.0,
)
PROGRESS = Progress(
    run=RUN,
    incarnation="one",
    attempt=1,
    seq=0,
    step=1,
    samples=8,
    tokens=64,
    tokens_per_s=1.0,
    loss=None,
    layout=Layout(dp_shard=2),
    ranks=(0, 1),
)


class Attempts:
    """Stands behind the attempt number, as the chair does."""

    def __init__(self) -> None:
        """Begin at the first attempt."""
        self.number = 1
        self.let_in = 0

    def raise_above(self, floor: int) -> int:
        """Take the next number."""
        self.number = max(self.number, floor) + 1
        return self.number

    def accepted(self) -> None:
        """Count."""
        self.let_in += 1


def client(socket_path: Path, folder: Path, register: Register = REGISTER) -> DaemonClient:
    """Start a daemon client for a launch."""
    started = DaemonClient(DaemonLink(str(socket_path)), register, JobOutbox(folder), Attempts())
    started.start()
    return started


def test_reports_survive_an_absence_of_the_daemon(tmp_path: Path, socket_path: Path) -> None:
    """What was queued while nobody listened arrives in order, once, when somebody does."""
    speaking = client(socket_path, tmp_path / "outbox")
    states = [SwitchState.ANNOUNCED, SwitchState.CHECKPOINTING, SwitchState.REBUILDING]
    for state in states:
        speaking.transition(replace(STEP, state=state))
    until(lambda: len(list((tmp_path / "outbox").glob("*.json"))) == 3, "the outbox is on disk")
    with FakeDaemon(socket_path, tmp_path, []) as daemon:
        until(lambda: len(daemon.heard.transitions) == 3, "three transitions")
        speaking.close(5.0)
    assert daemon.states() == states
    assert list((tmp_path / "outbox").glob("*.json")) == []


def test_a_launch_says_for_how_long_it_asked_to_be_let_in(
    tmp_path: Path, socket_path: Path
) -> None:
    """A daemon that comes back does not take its own absence for a wait for nodes."""
    began_s = time.monotonic()
    speaking = client(socket_path, tmp_path / "outbox")
    alone_s = time.monotonic()
    until(lambda: time.monotonic() - alone_s > 0.2, "a while without a daemon")
    with FakeDaemon(socket_path, tmp_path, []) as daemon:
        until(lambda: daemon.heard.registers, "registered")
        heard_s = time.monotonic()
        speaking.close(5.0)
    told_s = daemon.heard.registers[0].asked_s
    assert told_s is not None
    assert 0.2 < told_s <= heard_s - began_s


def test_an_absence_is_one_line_in_the_log_and_its_end_another(
    tmp_path: Path, socket_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many reports come due meanwhile, and although nothing to send is no answer."""

    def lines() -> list[str]:
        return [each.message for each in caplog.records if each.name.endswith("daemon_client")]

    with FakeDaemon(socket_path, tmp_path, []):
        speaking = client(socket_path, tmp_path / "outbox")
        until(speaking._registered.is_set, "registered")
    socket_path.unlink()
    for step in range(2, 5):
        speaking.progress(replace(PROGRESS, step=step))
        until(lambda: speaking._progress is None, "the report to be tried")
        assert speaking._idle.wait(20.0)
        speaking._idle.clear()
    assert len(lines()) == 1, lines()
    assert "said once" in lines()[0]
    with FakeDaemon(socket_path, tmp_path, []):
        speaking.progress(replace(PROGRESS, step=9))
        until(lambda: len(lines()) == 2, "the line of its end")
        speaking.close(5.0)
    assert "answers again" in lines()[1]


def test_what_a_dead_launch_left_goes_out_before_the_next_registers(
    tmp_path: Path, socket_path: Path
) -> None:
    """The old incarnation's messages keep its name and number, and are sent first."""
    first = client(socket_path, tmp_path / "outbox")
    first.transition(STEP)
    first.finish(
        Finish(run=RUN, incarnation="one", attempt=1, step=10, tokens=64, reason="restart")
    )
    first.close(0.2)
    with FakeDaemon(socket_path, tmp_path, []) as daemon:
        second = client(
            socket_path,
            tmp_path / "outbox",
            replace(REGISTER, incarnation="two", attempt=2, supersedes="one"),
        )
        second.transition(replace(STEP, incarnation="two", attempt=2, switch_id="q"))
        until(lambda: len(daemon.heard.transitions) == 2, "both transitions")
        second.close(5.0)
    assert [each.incarnation for each in daemon.heard.transitions] == ["one", "two"]
    assert [each.reason for each in daemon.heard.finishes] == ["restart"]


def test_a_daemon_that_forgot_the_run_is_told_again(tmp_path: Path, socket_path: Path) -> None:
    """After the journal was replaced, the daemon client registers again and goes on."""
    speaking = client(socket_path, tmp_path / "outbox")
    with FakeDaemon(socket_path, tmp_path, []) as before:
        until(lambda: before.heard.registers, "registered")
    socket_path.unlink()
    with FakeDaemon(socket_path, tmp_path, [Wish(layout=TP2, ranks=(0, 1), at=5)]) as after:
        speaking.transition(STEP)
        until(lambda: after.heard.registers, "registered again")
        until(lambda: after.heard.transitions, "the transition")
        until(lambda: speaking.orders().order is not None, "an order")
        speaking.close(5.0)
    assert len(after.heard.transitions) == 1


def test_only_the_newest_progress_is_sent(tmp_path: Path, socket_path: Path) -> None:
    """A thousand reports become a few, the last of them among them, with rising seq."""
    with FakeDaemon(socket_path, tmp_path, []) as daemon:
        speaking = client(socket_path, tmp_path / "outbox")
        until(lambda: daemon.heard.registers, "registered")
        began = time.monotonic()
        for step in range(1, 1001):
            speaking.progress(replace(PROGRESS, step=step))
        assert time.monotonic() - began < 10
        until(lambda: daemon.heard.progress and daemon.heard.progress[-1].step == 1000, "step 1000")
        speaking.close(5.0)
    assert len(daemon.heard.progress) < 20
    seqs = [each.seq for each in daemon.heard.progress]
    assert seqs == sorted(set(seqs))


def test_an_unreadable_leftover_is_dropped_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn or foreign file in the outbox does not block what comes after."""
    (tmp_path / "00000001.json").write_text('{"kind": "transi')
    outbox = JobOutbox(tmp_path)
    assert len(outbox) == 0
    assert "it is dropped" in caplog.text


@pytest.fixture
def dripping(socket_path: Path) -> Iterator[Path]:
    """A server that sends one byte of a header every 50 ms, for ever."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(socket_path))
    server.listen()
    stop = threading.Event()

    def drip() -> None:
        line, _ = server.accept()
        try:
            while not stop.wait(0.05):
                line.send(b"x")
        except OSError:
            pass
        line.close()

    thread = threading.Thread(target=drip)
    thread.start()
    yield socket_path
    stop.set()
    thread.join()
    server.close()


def test_a_call_ends_within_its_limit_whatever_comes(dripping: Path) -> None:
    """A byte now and then resets every socket timeout, but not the limit of the call."""
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match="no usable answer"):
        DaemonLink(str(dripping)).call("GET", "/", None, 0.5)
    assert time.monotonic() - began < 20


def test_a_call_ends_when_another_thread_ends_it(dripping: Path) -> None:
    """The one that waits for its answer, and the next one, which is not waited for."""
    link, end, ended = DaemonLink(str(dripping)), EndOfCalls(), threading.Event()

    def call() -> None:
        with pytest.raises(SourceUnavailable, match="no usable answer"):
            link.call("GET", "/", None, 300.0, end)
        ended.set()

    for _ in range(2):
        ended.clear()
        threading.Thread(target=call, daemon=True).start()
        until(lambda: ended.is_set() or _connected(end), "the call has begun")
        end.end()
        assert ended.wait(60.0)


def _connected(end: EndOfCalls) -> bool:
    return end._last is not None and end._last.sock is not None


def test_no_thread_waits_for_orders_after_the_close(
    tmp_path: Path, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon holds the call for as long as the job lets it."""
    monkeypatch.setattr(daemon_client, "ORDER_WAIT_S", 600.0)
    with WaitingDaemon(socket_path, tmp_path, []) as daemon:
        speaking = client(socket_path, tmp_path / "outbox")
        assert daemon.waits.wait(60.0)
        speaking.close(5.0)
        speaking._asker.join(60.0)
        assert not speaking._asker.is_alive()
        daemon.release.set()


class WaitingDaemon(FakeDaemon):
    """Holds the call for orders until it is released."""

    waits, release = threading.Event(), threading.Event()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Hold, or answer."""
        if "/order?" in path and self.heard.registers:
            self.waits.set()
            self.release.wait(120.0)
        return super().answer(method, path, body)


@pytest.mark.parametrize("body", [b"[" * 200_000, b"{", b"\xff"])
def test_an_answer_that_nobody_can_read_is_no_answer(socket_path: Path, body: bytes) -> None:
    """Nested without end, cut, or no text at all: the thread that asked goes on."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(socket_path))
        server.listen()

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(4096)
                line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SourceUnavailable, match="no usable answer"):
            DaemonLink(str(socket_path)).call("GET", "/", None, 20.0)
        thread.join()


def test_an_address_that_is_no_socket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """WATTMESH_URL must be a Unix socket's; unset means no daemon."""
    monkeypatch.delenv("WATTMESH_URL", raising=False)
    assert DaemonLink.from_environment() is None
    for wrong in ("http://example.test", "unix://run/x.sock", "unix:run/x.sock", "unix://[x"):
        monkeypatch.setenv("WATTMESH_URL", wrong)
        with pytest.raises(InputInvalid, match="write unix:///path"):
            DaemonLink.from_environment()
