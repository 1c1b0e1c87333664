"""Agents in processes of their own, each with its own fake GPUs, before one real daemon."""

import grp
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.daemon.forking import Process, start
from tests.daemon.process import DaemonProcess
from tests.daemon.waiting import wait_for
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.telemetry.fake_nvml import Board, FakeNvml

AGENTS = '[power]\nsource = "agents"\n'
"""What the daemon's settings need."""

SETTINGS = """\
[power]
source = "agents"
library = "{library}"
[api]
socket = "{folder}/none.sock"
[loops]
sample_s = 0.1
[agent]
node = "{node}"
controller = "{controller}"
outbox = "{folder}/agent.db"
relay = "{folder}/relay.sock"
metrics = "127.0.0.1:0"
deliver_s = 0.2
{more}
[actuator]
mode = "enforce"
group = "{group}"
socket = "{folder}/actuator.sock"
journal = "{folder}/actuator.journal"
library = "{library}"
write_every_s = 0.0
step_share = 1.0
"""


@dataclass(slots=True)
class Node:
    """One node: its GPUs, its settings, and its agent's process while there is one.

    Attributes:
        began: every GPU's counter when it first stood still, in mJ.
    """

    name: str
    folder: Path
    gpus: FakeNvml
    process: Process | None = None
    children: list[Process] = field(default_factory=list)
    began: dict[str, int] = field(default_factory=dict)

    @property
    def relay(self) -> Path:
        """Where its jobs reach the controller."""
        return self.folder / "relay.sock"

    @property
    def log(self) -> str:
        """What its agent logged so far."""
        return (self.folder / "agent.log").read_text()

    @property
    def running(self) -> Process:
        """Its agent."""
        assert self.process is not None
        return self.process

    def configure(self, controller: str, more: str = "") -> None:
        """Write its settings."""
        text = SETTINGS.format(
            node=self.name,
            folder=self.folder,
            library=self.gpus.library,
            controller=controller,
            group=grp.getgrgid(os.getegid()).gr_name,
            more=more,
        )
        (self.folder / "wattmesh.toml").write_text(text)

    def start(self) -> None:
        """Start its agent, and wait until it serves."""
        notify = self.folder / "notify"
        notify.unlink(missing_ok=True)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
            (self.folder / "agent.log").open("ab") as log,
        ):
            manager.bind(str(notify))
            manager.setblocking(False)
            config = str(self.folder / "wattmesh.toml")
            self.process = start(
                "wattmesh.controller.agent",
                *("--config", config),
                log=log,
                environment={**os.environ, "NOTIFY_SOCKET": str(notify)},
            )

            def ready() -> bool:
                assert self.running.poll() is None, f"the agent ended:\n{self.log}"
                with suppress(BlockingIOError):
                    return manager.recv(4096).startswith(b"READY=1")
                return False

            wait_for(ready, f"the agent of {self.name}", 30.0)

    def start_actuator(self) -> Process:
        """Start the process that may change its GPUs; it ends with the node."""
        (self.folder / "actuator.sock").unlink(missing_ok=True)
        config = str(self.folder / "wattmesh.toml")
        with (self.folder / "actuator.log").open("ab") as log:
            process = start("wattmesh.telemetry.actuator", "--config", config, log=log)
        self.children.append(process)
        wait_for((self.folder / "actuator.sock").exists, "the actuator", 30.0)
        return process

    def locks(self) -> set[int | None]:
        """Read the clocks that its GPUs are locked to."""
        return {gpu.truth().lock_mhz for gpu in self.gpus.gpus}

    def end(self, number: int = signal.SIGTERM) -> int:
        """End its agent by a signal; give the exit status."""
        if self.running.poll() is None:
            self.running.send_signal(number)
        return self.running.wait(30.0)

    def fill_disk(self, full: bool) -> None:
        """Let no file of the agent's grow any more, or let them grow again."""
        _, hard = resource.prlimit(self.running.pid, resource.RLIMIT_FSIZE)
        soft = 1 if full else hard
        resource.prlimit(self.running.pid, resource.RLIMIT_FSIZE, (soft, hard))

    def job(self, *gpus: int, uid: int | None = None) -> subprocess.Popen[bytes]:
        """Start a process that computes on some of its GPUs, as another user if need be."""
        child = subprocess.Popen(["sleep", "600"], user=uid)
        self.children.append(child)
        for gpu in gpus:
            self.gpus.gpu(gpu).process(child.pid, lingers=True)
        return child

    def draw(self, power_w: float) -> None:
        """Let every GPU draw so much from now on."""
        for gpu in self.gpus.gpus:
            gpu.draw(power_w)

    def truth(self) -> dict[str, int]:
        """Read every GPU's counter, in mJ."""
        return {gpu.uuid: gpu.truth().counter_mj for gpu in self.gpus.gpus}


@contextmanager
def node(
    folder: Path, name: str, controller: str, *, gpus: int = 2, more: str = ""
) -> Iterator[Node]:
    """Make a node whose GPUs draw nothing yet; whatever happens its processes are gone after."""
    home = folder / name
    home.mkdir()
    fake = FakeNvml.create(home / "gpus", gpus=gpus, board=Board.H100, update_ms=0)
    made = Node(name=name, folder=home, gpus=fake)
    made.draw(0.0)
    made.began = made.truth()
    made.configure(controller, more)
    try:
        yield made
    finally:
        agent: list[Process] = [made.process] if made.process is not None else []
        for child in (*made.children, *agent):
            if child.poll() is None:
                child.kill()
            child.wait()
        fake.close()


class Books:
    """The journal of a daemon, read beside it."""

    def __init__(self, daemon: DaemonProcess) -> None:
        """Open it."""
        self.journal = Journal.open(f"sqlite:///{daemon.folder}/journal.db")

    def close(self) -> None:
        """Close it."""
        self.journal.close()

    def booked(self) -> dict[str, int]:
        """Add up what every GPU was charged with, in mJ."""
        sums: dict[str, int] = {}
        for row in self.journal.ledger.energy():
            sums[row.gpu_uuid] = sums.get(row.gpu_uuid, 0) + (row.energy_mj or 0)
        return sums

    def lines(self, gpu: str) -> dict[tuple[str, str], int]:
        """Add up what one GPU was charged with, by run and line, in mJ."""
        sums: dict[tuple[str, str], int] = {}
        for row in self.journal.ledger.energy():
            if row.gpu_uuid == gpu:
                key = (row.run, row.line)
                sums[key] = sums.get(key, 0) + (row.energy_mj or 0)
        return sums

    def find(self, name: str) -> NodeRow | None:
        """Find a node."""
        return next((each for each in self.journal.nodes.all() if each.node == name), None)

    def wait_known(self, which: Node) -> None:
        """Wait until a node's devices, and with them its first readings, are known."""
        wait_for(
            lambda: (row := self.find(which.name)) is not None and len(row.devices) > 0,
            f"the devices of {which.name}",
            30.0,
        )

    def wait_whole(self, *nodes: Node) -> None:
        """Wait until the journal holds what the counters moved, to the millijoule.

        Args:
            nodes: whose GPUs draw nothing any more.
        """
        wanted = {gpu: mj - each.began[gpu] for each in nodes for gpu, mj in each.truth().items()}

        def whole() -> bool:
            booked = self.booked()
            assert all(booked.get(gpu, 0) <= mj for gpu, mj in wanted.items()), (
                f"counted twice: {booked} of {wanted}"
            )
            return all(booked.get(gpu, 0) == mj for gpu, mj in wanted.items())

        wait_for(whole, "the last millijoule in the journal", 30.0)


@contextmanager
def books(daemon: DaemonProcess) -> Iterator[Books]:
    """Open a daemon's journal beside it."""
    opened = Books(daemon)
    try:
        yield opened
    finally:
        opened.close()
