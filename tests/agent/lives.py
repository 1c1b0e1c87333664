"""One life of an agent's sampler and delivery after another, each killed at its nth statement.

    python -m tests.agent.lives FOLDER SOCKET STATEMENTS...

Forks a life for each number, waits for its end, and prints how it ended; number 0 lives to its
end. The hardware counter is a file, which goes on while nobody lives; time goes on as it does, so
that a busy machine books no more slots, by no more statements, than a quiet one.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from wattmesh.controller.agent.outbox import AgentOutbox
from wattmesh.telemetry.energy.attribution import EnergyClaim
from wattmesh.telemetry.energy.delivery import EnergyBatch
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.sampler import Sampler
from wattmesh.telemetry.readings import PowerReading, Quality

GRID = SlotGrid(origin=datetime(2020, 1, 1, tzinfo=UTC), interval_s=0.2)
CLAIM = {"G0": EnergyClaim(run="run-1", incarnation="inc-1", line="run")}
DRAWN_MJ = 17
DRAWN_EVERY_S = 0.03
STEPS = 2


class Hardware:
    """One GPU whose counter is a file: it survives whoever reads it."""

    name = "hardware"

    def __init__(self, path: Path) -> None:
        """Open the counter."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    @property
    def counter_mj(self) -> int:
        """What it shows."""
        return int(os.pread(self._file, 32, 0) or b"1000")

    @property
    def monotonic_s(self) -> float:
        """Seconds that passed: so many for each draw."""
        return self.counter_mj / DRAWN_MJ * DRAWN_EVERY_S

    @property
    def at(self) -> datetime:
        """The time of day."""
        return GRID.origin + timedelta(seconds=self.monotonic_s)

    def draw(self) -> None:
        """Draw some energy."""
        os.pwrite(self._file, b"%020d" % (self.counter_mj + DRAWN_MJ), 0)

    def gpu_uuids(self) -> Sequence[str]:
        """List the one device."""
        return ("G0",)

    def read(self) -> Sequence[PowerReading]:
        """Read it."""
        return (
            PowerReading(
                gpu_uuid="G0",
                at=self.at,
                monotonic_s=self.monotonic_s,
                power_w=None,
                energy_mj=self.counter_mj,
                clock_mhz=None,
                power_limit_w=700.0,
                source="hardware",
                quality=Quality.MEASURED,
            ),
        )


def deliver(batch: EnergyBatch, address: Path) -> bool:
    """Hand a batch over; False when no answer came."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10.0)
        connection.connect(str(address))
        connection.sendall(json.dumps(batch.to_json()).encode() + b"\n")
        return connection.recv(16) == b"taken"


def live(folder: Path, address: Path, statements: int) -> None:
    """Sample, book and deliver; die at the nth statement of the database, if not 0."""
    hardware = Hardware(folder / "hardware")
    outbox = AgentOutbox(folder / "agent.db", node="n1", boot_id="boot-1", now=lambda: hardware.at)
    left = [statements]

    def count(statement: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    outbox._file._database.set_trace_callback(count)
    outbox.adopt(())
    sampler = Sampler(hardware, outbox, GRID, boot_id="boot-1")
    for _ in range(STEPS):
        hardware.draw()
        sampler.step(hardware.at, hardware.monotonic_s, CLAIM)
        sampler.flush()
        batch = outbox.batch()
        if batch is not None and deliver(batch, address):
            outbox.acknowledged(batch)
    while not statements and (batch := outbox.batch()) is not None:
        if deliver(batch, address):
            outbox.acknowledged(batch)


def main(folder: Path, address: Path, numbers: Sequence[int]) -> None:
    """Live so many lives."""
    for number in numbers:
        child = os.fork()
        if child == 0:
            try:
                live(folder, address, number)
            except BaseException as error:
                print(type(error).__name__, error, file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(number, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [int(each) for each in sys.argv[3:]])
