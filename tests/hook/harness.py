"""One run under test: its folder, its launches through the zygote, its daemon, what came out."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.hook.tiny import Fault, Options
from wattmesh.reconfig.launcher.supervisor import Launch, Supervisor
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.probe.rebuild_check import relative

PATIENCE_S = 180.0

PATIENT = {
    "train_s": 60.0,
    "agree_s": 60.0,
    "save_s": 60.0,
    "teardown_s": 60.0,
    "rebuild_s": 60.0,
    "load_s": 60.0,
    "verify_s": 60.0,
    "wake_s": 60.0,
    "leave_s": 30.0,
    "silence_s": 60.0,
}
"""Deadlines that only what is stuck can pass, however busy the machine is."""


def short(*phases: str) -> dict[str, float]:
    """Give deadlines that are short in the phases in which a rank will be stuck, and there alone.

    Where a rank is lost, how long its peers may take to leave decides nothing but the test's time.
    """
    return {**PATIENT, "leave_s": 2.5, **{f"{each}_s": 8.0 for each in phases}}


DP2 = Layout(dp_shard=2)
DP4 = Layout(dp_shard=4)
TP2 = Layout(tp=2)
DP2_TP2 = Layout(dp_shard=2, tp=2)
ONE = Layout()


class Zygote:
    """The process that forks ranks; shared by all tests of a session."""

    def __init__(self) -> None:
        """Start it; the torch import is paid here, once."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hook.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._number = 0
        self._outs: dict[int, Path] = {}
        self._said: dict[int, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(
        self,
        nproc: int,
        environment: Mapping[str, str],
        out: Path,
        job: str = "tests.hook.tiny:main",
        hosts: Sequence[int] = (),
    ) -> int:
        """Launch a job (module:function, run by every rank); gives the launch's number.

        `hosts`: how many of the ranks are on each of one or two hosts of their own.
        """
        with self._news:  # tests start launches from several threads
            self._number = number = self._number + 1
            self._outs[number] = out
        request = {
            "id": number,
            "nproc": nproc,
            "environment": dict(environment),
            "out": str(out),
            "job": job,
            **({"hosts": list(hosts)} if hosts else {}),
        }
        self._send(request)
        return number

    def load(self, module: str) -> None:
        """Import what is slow to import once, for every rank that is started from now on."""
        self._send({"load": module})

    def end(self, number: int) -> None:
        """Ask a launch's agent to end its ranks."""
        self._send({"end": number})

    def status(self, number: int) -> int | None:
        """Exit status of a launch; None while it runs."""
        with self._news:
            found: int | None = self._said.get(number, {}).get("status")
            return found

    def pids(self, number: int, count: int = 1) -> dict[int, int]:
        """Process ids by rank, once `count` of them have been forked."""
        return self._numbers(number, "pids", count)

    def agents(self, number: int) -> dict[int, int]:
        """Process ids of the agents of a launch on several hosts, by host."""
        return self._numbers(number, "agents", 1)

    def _numbers(self, number: int, what: str, count: int) -> dict[int, int]:
        def there() -> bool:
            return len(self._said.get(number, {}).get(what, {})) >= count

        with self._news:
            self._news.wait_for(there, PATIENCE_S)
            return {int(each): pid for each, pid in self._said[number][what].items()}

    def wait(self, number: int, patience_s: float = PATIENCE_S) -> int:
        """Wait for a launch to end."""
        with self._news:
            if not self._news.wait_for(lambda: "status" in self._said.get(number, {}), patience_s):
                where = self._where(number)
                raise TimeoutError(f"launch {number} did not end within {patience_s} s\n{where}")
            return int(self._said[number]["status"])

    def _where(self, number: int) -> str:
        """Have the ranks of a launch that hangs write where, and give the ends of their logs."""
        for pid in self._said.get(number, {}).get("pids", {}).values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)
        time.sleep(1.0)
        logs = sorted(self._outs[number].glob("*.log"))
        return "\n".join(f"{each.name}:\n{each.read_text()[-6000:]}" for each in logs)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._reader.join(5)
        self._process.stdout.close()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._sending:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._news:
                known = self._said.setdefault(said["id"], {})
                # Every host says which ranks it has started.
                known["pids"] = {**known.pop("pids", {}), **said.pop("pids", {})}
                known.update(said)
                self._news.notify_all()
        with self._news:
            for launch in range(self._number + 1):
                self._said.setdefault(launch, {}).setdefault("status", -1)
            self._news.notify_all()


class Run:
    """One run: a folder, options, and what it wrote."""

    def __init__(self, zygote: Zygote, folder: Path, nproc: int, **options: Any) -> None:
        """Prepare a run of `nproc` ranks in `folder`."""
        self.zygote = zygote
        self.nproc = nproc
        self.out = folder / "out"
        self.out.mkdir(parents=True, exist_ok=True)
        self.checkpoints = folder / "ck"
        layout = options.pop("layout", DP2).to_dict()
        options.setdefault("deadlines", PATIENT)
        self.options = Options(
            folder=str(self.checkpoints), out=str(self.out), layout=layout, **options
        )
        self.environment: dict[str, str] = {}
        self.later: dict[str, float] | None = None
        """Deadlines of all launches but the first, where they are others."""
        self.said: list[str] = []
        self.launches: list[int] = []
        self.hosts: list[tuple[int, ...]] = []
        self.job = "tests.hook.tiny:main"

    def with_daemon(self, socket_path: Path) -> "Run":
        """Let the job speak to the daemon at `socket_path`."""
        self.environment["WATTMESH_URL"] = f"unix://{socket_path}"
        return self

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start the ranks (the supervisor's launcher protocol)."""
        options = self.options
        if self.launches and self.later is not None:
            options = replace(options, deadlines=self.later)
        merged = {"TINY": options.to_text(), **self.environment, **environment}
        # The last entry is for all launches that follow.
        hosts = self.hosts[min(len(self.launches), len(self.hosts) - 1)] if self.hosts else ()
        nproc = sum(hosts) or self.nproc
        number = self.zygote.start(nproc, merged, self.out, self.job, hosts)
        self.launches.append(number)
        return _Forked(self.zygote, number)

    def once(self, patience_s: float = PATIENCE_S) -> int:
        """Launch once and wait; gives the exit status."""
        self.launch({})
        return self.zygote.wait(self.launches[-1], patience_s)

    def supervised(self, **settings: Any) -> int:
        """Run under the supervisor to the end; gives its exit status."""
        supervisor = Supervisor(self, self.checkpoints, say=self.said.append, **settings)
        return supervisor.run()

    def change(self, **options: Any) -> None:
        """Change options for the next launch."""
        self.options = replace(self.options, **options)

    def lose(self, fault: Fault, *phases: str) -> None:
        """Lose a rank in the first launch, which waits briefly for it in `phases`."""
        self.change(fault=fault, deadlines=short(*phases))
        self.later = PATIENT

    def losses(self) -> dict[int, float]:
        """The loss per step; a step trained again after a restart counts as trained last."""
        return {line["step"]: line["loss"] for line in self.lines()}

    def lines(self) -> list[dict[str, Any]]:
        """Every step that was trained, in order."""
        path = self.out / "losses.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def layouts(self) -> list[str]:
        """The layouts trained in, one after the other."""
        names = [line["layout"] for line in self.lines()]
        return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]

    def log(self) -> str:
        """What all ranks wrote to stderr."""
        logs = sorted(self.out.glob("rank-*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in logs)


class _Forked:
    """A launch of the zygote, as the supervisor sees it."""

    def __init__(self, zygote: Zygote, number: int) -> None:
        self._zygote = zygote
        self._number = number

    def poll(self) -> int | None:
        """Exit status; None while it runs."""
        return self._zygote.status(self._number)

    def end(self) -> None:
        """End it."""
        self._zygote.end(self._number)


def worst_difference(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Largest relative difference of two loss curves; infinite when the steps differ."""
    if set(a) != set(b):
        return math.inf
    return max(relative(a[step], b[step]) for step in b)


def until(condition: Any, what: str, patience_s: float = PATIENCE_S) -> Any:
    """Poll a condition until it holds; gives its value."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {patience_s} s")
        time.sleep(0.01)
    return value
