"""An agent killed at every statement of its database, and a controller that loses answers."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.agent.delivery.ledgers import Controller, amounts
from tests.agent.lives import Hardware
from wattmesh.controller.agent.outbox import AgentOutbox
from wattmesh.telemetry.energy.delivery import EnergyBatch

MOST_STATEMENTS = 75


class LossyController:
    """Takes a batch per connection; every third answer gets lost, after the batch was taken."""

    def __init__(self, listener: socket.socket) -> None:
        """Begin with nothing."""
        self.holds = Controller()
        self.lost = 0
        self.repeats = 0
        self._listener = listener
        self._count = 0

    def serve(self) -> None:
        """Serve until the listener is shut."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                line = lines.readline()
                if not line.endswith(b"\n"):
                    continue  # killed while it spoke
                self._count += 1
                self.repeats += not self.holds.take(EnergyBatch.from_json(json.loads(line)))
                if self._count % 3 == 0:
                    self.lost += 1
                    continue
                try:
                    connection.sendall(b"taken")
                except OSError:
                    continue


@contextmanager
def lossy(address: Path) -> Iterator[LossyController]:
    """Serve on a socket."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(address))
        listener.listen()
        controller = LossyController(listener)
        thread = threading.Thread(target=controller.serve)
        thread.start()
        try:
            yield controller
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def live(folder: Path, address: Path, *numbers: int) -> dict[int, int]:
    """Live one life per number; give how each ended."""
    command = [sys.executable, "-m", "tests.agent.lives", str(folder), str(address)]
    done = subprocess.run(
        [*command, *map(str, numbers)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return {int(a): int(b) for a, b in (line.split() for line in done.stdout.splitlines())}


def test_killed_at_every_statement_everything_is_delivered_once(tmp_path: Path) -> None:
    """What the controller adds up is what the counter moved, to the millijoule."""
    address = tmp_path / "controller"
    with lossy(address) as controller:
        live(tmp_path, address, 0)
        begun_mj = _booked_up_to(tmp_path) - amounts(controller.holds.rows)[0]
        ends = live(tmp_path, address, *range(1, MOST_STATEMENTS))
        assert set(ends.values()) == {-9, 0}
        assert min(number for number, end in ends.items() if end == 0) > 20, "too few were killed"
        live(tmp_path, address, 0)
        truth_mj = Hardware(tmp_path / "hardware").counter_mj
        assert _booked_up_to(tmp_path) == truth_mj
        assert amounts(controller.holds.rows)[0] == truth_mj - begun_mj
        assert begun_mj == 1000 + 17  # the first reading
        assert controller.lost > 5
        assert controller.repeats > 5


def test_a_controller_that_forgets_what_it_has_taken_would_be_seen(tmp_path: Path) -> None:
    """The sabotaged twin: without the watermark, lost answers count twice."""
    address = tmp_path / "controller"
    with lossy(address) as controller:
        controller.holds.newest = _Forgetful()
        live(tmp_path, address, 0, 7, 20, 30, 0)
        begun_mj = 1000 + 17
        truth_mj = Hardware(tmp_path / "hardware").counter_mj
        assert amounts(controller.holds.rows)[0] > truth_mj - begun_mj


class _Forgetful(dict[tuple[str, str], int]):
    """Remembers nothing."""

    def __setitem__(self, key: tuple[str, str], value: int) -> None:
        """Forget it."""


def _booked_up_to(folder: Path) -> int:
    """Read the counter up to which the outbox has booked."""
    outbox = AgentOutbox(folder / "agent.db", node="n1", boot_id="boot-1")
    try:
        return outbox.baselines()["G0"].energy_mj
    finally:
        outbox.close()
