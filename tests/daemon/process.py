"""A real daemon in a process of its own: settings file, socket, journal, service manager."""

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.builders import messages
from tests.builders.journals import empty_journal
from tests.daemon.forking import Process, start, start_anew
from tests.daemon.waiting import wait_for

SETTINGS = """\
mode = "act"
[journal]
url = "sqlite:///{folder}/journal.db"
trust_clock = true
[api]
socket = "{folder}/w.sock"
[metrics]
listen = "127.0.0.1:0"
[loops]
cycle_s = 0.2
sample_s = 0.2
lease_s = 10
{more}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    body: Any


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("w", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, target: str, body: Any = None, timeout_s: float = 30.0) -> Answer:
    """Send one request to a socket."""
    return asked(_Connection(path, timeout_s), method, target, body)


def asked(connection: http.client.HTTPConnection, method: str, target: str, body: Any) -> Answer:
    """Send one request over a connection, and close it."""
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, target, body=data)
        answer = connection.getresponse()
        return Answer(status=answer.status, body=json.loads(answer.read()))
    finally:
        connection.close()


@dataclass(slots=True)
class DaemonProcess:
    """One daemon process, its folder, and what it told its service manager."""

    folder: Path
    process: Process
    manager: socket.socket
    told: list[str] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "w.sock"

    @property
    def settings(self) -> Path:
        """Its settings file."""
        return self.folder / "wattmesh.toml"

    @property
    def log(self) -> str:
        """What it logged so far."""
        return (self.folder / "daemon.log").read_text()

    def get(self, target: str, timeout_s: float = 30.0) -> Answer:
        """Read one answer."""
        return ask(self.socket, "GET", target, timeout_s=timeout_s)

    def post(self, target: str, body: Any) -> Answer:
        """Ask for an act."""
        return ask(self.socket, "POST", target, body)

    def register(self) -> None:
        """Let a run introduce itself."""
        answer = self.post(f"/v1/runs/{messages.RUN}/register", messages.register())
        assert answer.status == 200, answer.body

    def status(self) -> dict[str, Any]:
        """Read the status."""
        body: dict[str, Any] = self.get("/v1/status").body
        return body

    def hear(self) -> list[str]:
        """Collect what it has told its service manager."""
        with suppress(BlockingIOError):
            while True:
                self.told.append(self.manager.recv(4096).decode())
        return self.told

    def wait_told(self, word: str, times: int = 1) -> None:
        """Wait until it has told `word` so often."""

        def told() -> bool:
            ended = self.process.poll() is not None
            assert not ended or word in str(self.hear()), f"the daemon ended:\n{self.log}"
            return sum(each.startswith(word) for each in self.hear()) >= times

        wait_for(told, f"{word} of the daemon", 30.0)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; give the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30.0)


@contextmanager
def daemon(
    folder: Path,
    more: str = "",
    *,
    text: str | None = None,
    ready: bool = True,
    migrated: bool = True,
    forked: bool = True,
    module: str = "wattmesh.controller.daemon",
    **environment: str,
) -> Iterator[DaemonProcess]:
    """Run a daemon over `folder`; whatever happens it is gone afterwards.

    Args:
        folder: where its settings, socket and journal are.
        more: further settings.
        text: all settings instead.
        ready: wait until it serves.
        migrated: give it a journal if it has none.
        forked: fork it (forking.py); otherwise in an interpreter that imports everything.
        module: what runs, if it is another one.
        **environment: further variables.
    """
    begin = start if forked else start_anew
    journal = folder / "journal.db"
    if migrated and not journal.exists():
        journal.write_bytes(empty_journal())
    settings = folder / "wattmesh.toml"
    settings.write_text(text or SETTINGS.format(folder=folder, more=more))
    notify = folder / "notify"
    notify.unlink(missing_ok=True)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        (folder / "daemon.log").open("ab") as log,
    ):
        manager.bind(str(notify))
        manager.setblocking(False)
        process = begin(
            module,
            *("--config", str(settings)),
            log=log,
            environment={**os.environ, "NOTIFY_SOCKET": str(notify), **environment},
        )
        running = DaemonProcess(folder, process, manager)
        try:
            if ready:
                running.wait_told("READY=1")
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30.0)
