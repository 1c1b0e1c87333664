"""One GPU node in real processes: the actuator, a stand-in agent, jobs, on a fake NVML library.

Invariant: whatever was started is stopped by its pid when the node closes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wattmesh.errors import WattmeshError
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import Applied, Desired, LeaseKind, Wish
from wattmesh.telemetry.fake_nvml import Board, FakeNvml
from wattmesh.telemetry.fake_nvml.gpu import Truth

DEADLINE_S = 60.0
"""For what must come; a loaded machine may take long."""

RUN = "run-1"

SETTINGS = """\
[actuator]
mode = "{mode}"
socket = "{folder}/actuator.sock"
group = ""
journal = "{folder}/journal"
library = "{library}"
write_every_s = {write_every_s}
step_share = {step_share}
"""

AGENT = """\
import json, sys, time
from pathlib import Path
from wattmesh.errors import WattmeshError
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import Desired
client, wish = ActuatorClient(Path(sys.argv[1])), Path(sys.argv[2])
while True:
    try:
        said = json.loads(wish.read_text())
        claims = {name: ProcessClaim.from_json(each) for name, each in said["claims"].items()}
        client.apply(Desired.from_json(said["desired"]), claims)
    except (WattmeshError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
    time.sleep(0.2)
"""
"""Repeats what stands in a file, as the agent repeats what its controller wishes; when the file
goes, so has the controller."""

JOB = """\
import os, signal, sys, time
if "zombie" in sys.argv:
    if os.fork():
        time.sleep(3600)
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(3600)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """How long something took to come true, in seconds."""

    seconds: float


class Node:
    """A node and everything on it."""

    def __init__(
        self,
        *,
        gpus: int = 2,
        mode: str = "enforce",
        write_every_s: float = 0.0,
        step_share: float = 1.0,
    ) -> None:
        """Make the GPUs, busy for a job of ours; start nothing yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="wm-node-")
        self.folder = Path(self._folder.name)
        self.fake = FakeNvml.create(self.folder / "gpus", gpus=gpus, board=Board.H100)
        self.config = self.folder / "wattmesh.toml"
        self.wish_file = self.folder / "wish.json"
        self.config.write_text(
            SETTINGS.format(
                folder=self.folder,
                mode=mode,
                library=self.fake.library,
                write_every_s=write_every_s,
                step_share=step_share,
            )
        )
        self.client = ActuatorClient(self.folder / "actuator.sock")
        self.started: list[subprocess.Popen[bytes]] = []
        self.actuator: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None
        self.epoch = 1
        self.journal = str(uuid.uuid4())

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything by its pid."""
        for process in self.started:
            process.kill()
            process.wait()
        self.fake.close()
        self._folder.cleanup()

    def uuid(self, index: int) -> str:
        """Name a GPU."""
        return self.fake.gpus[index].uuid

    def start(self, *words: str) -> None:
        """Start the actuator and wait until it answers."""
        log = (self.folder / "actuator.log").open("ab")
        with log:
            self.actuator = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "wattmesh.telemetry.actuator",
                    "--config",
                    str(self.config),
                    *words,
                ],
                stderr=log,
            )
        self.started.append(self.actuator)
        self.until(self.answers)

    def start_agent(self) -> None:
        """Start the stand-in agent."""
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    AGENT,
                    str(self.folder / "actuator.sock"),
                    str(self.wish_file),
                ],
                stderr=log,
            )
        self.started.append(self.agent)

    def job(
        self, *words: str, gpus: Iterable[int] | None = None, uid: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a job, as another user if need be; it is listed on GPUs, which are busy with it."""
        command = [sys.executable, "-c", JOB, *words] if uid is None else ["sleep", "3600"]
        process = subprocess.Popen(command, user=uid)
        self.started.append(process)
        for gpu in self.fake.gpus if gpus is None else [self.fake.gpus[i] for i in gpus]:
            gpu.load(1.0)
            gpu.process(process.pid)
        return process

    def wish(self, *wishes: Wish, claims: dict[str, ProcessClaim] | None = None) -> None:
        """Let the controller wish; the agent repeats it until `silence`."""
        whose = {RUN: ProcessClaim(uids=frozenset({os.geteuid()}))} if claims is None else claims
        desired = self.desired(*wishes)
        said = {
            "desired": desired.to_json(),
            "claims": {name: each.to_json() for name, each in whose.items()},
        }
        staging = self.wish_file.with_suffix(".tmp")
        staging.write_text(json.dumps(said))
        staging.replace(self.wish_file)

    def desired(self, *wishes: Wish) -> Desired:
        """Give what our controller wishes."""
        return Desired(
            node="n1",
            epoch=self.epoch,
            serial=f"{time.monotonic_ns()}",
            wishes=wishes,
            journal=self.journal,
        )

    def silence(self) -> None:
        """Let the controller be heard no more."""
        self.wish_file.unlink(missing_ok=True)

    def economy(
        self, *, clock: int = 1200, cap: float | None = 500.0, lease_s: float = 30.0
    ) -> list[Wish]:
        """Wish the same of every GPU, for one run."""
        return [
            Wish(
                gpu_uuid=gpu.uuid,
                kind=LeaseKind.ECONOMY,
                holder=RUN,
                clock_mhz=clock,
                cap_w=cap,
                lease_s=lease_s,
            )
            for gpu in self.fake.gpus
        ]

    def duty(self, index: int = 0, *, cap: float = 450.0, seconds: float = 600.0) -> Wish:
        """Cap one GPU for some seconds, by an operator's order."""
        return Wish(
            gpu_uuid=self.uuid(index),
            kind=LeaseKind.OBLIGATION,
            holder="breaker-7",
            cap_w=cap,
            until=datetime.now(UTC) + timedelta(seconds=seconds),
        )

    def truths(self) -> list[Truth]:
        """Give what is true of every GPU."""
        return [gpu.truth() for gpu in self.fake.gpus]

    def lowered(self, clock: int = 1200, cap: float = 500.0) -> bool:
        """Say whether every GPU is as the economy wishes."""
        return all(
            (each.lock_mhz, each.requested_limit_w) == (clock, cap) for each in self.truths()
        )

    def free(self) -> bool:
        """Say whether every GPU is at its baseline."""
        return all(
            each.lock_mhz is None and each.requested_limit_w == each.default_limit_w
            for each in self.truths()
        )

    def only_duty(self, cap: float = 450.0) -> bool:
        """Say whether GPU 0 is under its obligation and everything else at its baseline."""
        first, *others = self.truths()
        return (
            first.lock_mhz is None
            and first.requested_limit_w == cap
            and all(
                each.lock_mhz is None and each.requested_limit_w == each.default_limit_w
                for each in others
            )
        )

    def answers(self) -> Applied | None:
        """Give the actuator's state; None when it does not answer."""
        try:
            return self.client.state()
        except WattmeshError:
            return None

    def trouble(self) -> str:
        """Give the first trouble of any GPU."""
        answer = self.answers()
        return next((gpu.trouble for gpu in answer.gpus if gpu.trouble), "") if answer else ""

    def said(self) -> str:
        """Give all that the actuator logged."""
        log = self.folder / "actuator.log"
        return log.read_text() if log.exists() else ""

    def until(self, condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Waited:
        """Wait until something is true; say how long it took.

        Raises:
            TimeoutError: it never was; the actuator's log is in the message.
        """
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() > began_s + deadline_s:
                raise TimeoutError(f"{self.truths()}\n{self.answers()}\n{self.said()[-3000:]}")
            time.sleep(0.01)
        return Waited(seconds=time.monotonic() - began_s)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the actuator's program once, e.g. `--restore`."""
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "wattmesh.telemetry.actuator",
                "--config",
                str(self.config),
                *words,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )


def kill(process: subprocess.Popen[bytes] | None) -> None:
    """End a process by SIGKILL, and reap it."""
    if process is None:
        raise AssertionError("it was never started")
    process.kill()
    process.wait()


def stop(process: subprocess.Popen[bytes] | None) -> None:
    """End a process by SIGTERM, and reap it."""
    if process is None:
        raise AssertionError("it was never started")
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE_S)
