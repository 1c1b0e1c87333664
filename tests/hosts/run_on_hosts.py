"""A run under test on two hosts: its supervisors, started again when they are killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.daemon.waiting import wait_for
from tests.hook import hosts
from tests.hosts.namespaces import REPOSITORY, TwoHosts
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.launch_book import LaunchBook, Records

JOB = Path(__file__).with_name("paper_rank.py")


class HostedRun:
    """One run: a supervisor on each of two hosts."""

    def __init__(
        self,
        two: TwoHosts,
        where: Path,
        command: list[str],
        *,
        module: str = "wattmesh.integrations.torchrun",
        nproc: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; `module` is the supervisor."""
        where.mkdir(parents=True, exist_ok=True)
        self.two, self.out, self.folder = two, where, RunFolder(where / "run")
        self._words = [
            *(sys.executable, "-m", module, f"--nproc={nproc}", "--hosts=2"),
            *(f"--checkpoint-dir={self.folder.path}", f"--address={hosts.address(0)}"),
        ]
        self._command = ["--", *command]
        self._environment = {**os.environ, "GLOO_SOCKET_IFNAME": hosts.INTERFACE}
        self._environment |= environment or {}
        self._live: dict[int, subprocess.Popen[bytes]] = {}
        self.statuses: dict[int, list[int]] = {0: [], 1: []}
        self.only: dict[int, dict[str, str]] = {0: {}, 1: {}}

    def start(self, host: int) -> None:
        """Start the supervisor of a host."""
        with (self.out / f"host-{host}.log").open("ab") as log:
            self._live[host] = subprocess.Popen(
                self.two.words(host, *self._words, f"--host={host}", *self._command),
                env={**self._environment, **self.only[host]},
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
            )

    def tend(self) -> None:
        """Start supervisors again that were killed, as a service manager does."""
        for host, process in list(self._live.items()):
            status = process.poll()
            if status is None:
                continue
            del self._live[host]
            self.statuses[host].append(status)
            if status == -signal.SIGKILL:
                self.start(host)

    def pid(self, host: int) -> int:
        """The supervisor's process (`nsenter` becomes it)."""
        return self._live[host].pid

    def is_over(self) -> bool:
        """Say whether both supervisors have ended."""
        self.tend()
        return not self._live

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait while supervisors are tended."""

        def holds() -> bool:
            self.tend()
            return bool(condition())

        try:
            wait_for(holds, what, limit_s=120.0)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.where()}") from error

    def end(self) -> None:
        """Kill what is left."""
        for each in self._live.values():
            each.kill()
            each.wait()

    def book(self) -> Records:
        """The launch book."""
        return LaunchBook(self.folder).read()

    def told(self) -> list[dict[str, Any]]:
        """What paper ranks wrote, in order."""
        path = self.out / "told.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def launches(self) -> list[dict[str, Any]]:
        """The launches of paper ranks, in order."""
        return [each for each in self.told() if "do" in each]

    def where(self) -> str:
        """What is known, for who reads a failure."""
        logs = [*sorted(self.out.glob("*.log"))]
        said = "\n".join(f"--- {each.name}\n{each.read_text()[-4000:]}" for each in logs)
        return f"{self.told()}\n{self.book()}\n{self.statuses}\n{said}"


def paper_run(
    two: TwoHosts, where: Path, *lines: dict[str, Any], dies: str = "", host: int = 0
) -> HostedRun:
    """A run of paper ranks, one on each host; the supervisor of `host` dies at a step."""
    where.mkdir(parents=True, exist_ok=True)
    plan = where / "plan.json"
    plan.write_text(json.dumps({"folder": str(where / "run"), "lines": lines}))
    run = HostedRun(two, where, [str(JOB), str(plan)], module="tests.hosts.dying")
    run.only[host] = {"DIES": dies, "DIED": str(where / "died")}
    return run
