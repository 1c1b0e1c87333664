"""Starts the job of `benchmarks.switch`, gives it its orders, and reads what its ranks noted."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.switch.job import VARIABLE, Began, JobOptions, Left
from benchmarks.switch.orders import OrderGiver, Stop
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Transition

RANKS = 4
WITHIN_S = 560.0
"""A part that is not over by then is ended: pieces stay under ten minutes."""

POLL_S, LAST_WORDS_S = 0.05, 60.0
"""How often ranks are looked at; how long others may take to end when one has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launch of the job: what its ranks noted, and when the launch began (monotonic)."""

    began_s: float
    left: tuple[Left, ...]
    began: tuple[Began, ...]
    told: tuple[Transition, ...] = ()

    def seconds(self, number: int) -> float:
        """From the first rank's leaving to the last rank's first step of switch `number`."""
        left = [each.at_s for each in self.left if each.number == number]
        return max(each.at_s for each in self._of(number)) - min(left)

    def cpu_s(self, number: int) -> float:
        """Processor seconds of switch `number`, of all ranks that came from or went to a layout.

        Without those of ranks that left a layout and were parked.
        """
        left = {each.rank: each.cpu_s for each in self.left if each.number == number}
        return sum(each.cpu_s - left.get(each.rank, each.cpu_s) for each in self._of(number))

    def step_s(self, number: int) -> float:
        """The first step of switch `number`, of the slowest rank."""
        return max(each.step_s for each in self._of(number))

    @property
    def numbers(self) -> list[int]:
        """The switches, in order."""
        return sorted({each.number for each in self.began} - {0})

    @property
    def start_s(self) -> float:
        """From the start of the processes to the last rank's first step."""
        return max(each.at_s for each in self._of(0)) - self.began_s

    def _of(self, number: int) -> list[Began]:
        return [each for each in self.began if each.number == number]


def stops(layouts: Sequence[Layout], count: int) -> list[Stop]:
    """Go through the layouts in turn, beginning with the second; the first is where one begins."""
    order = [layouts[(number + 1) % len(layouts)] for number in range(count)]
    return [Stop(layout=each, ranks=tuple(range(each.world_size))) for each in order]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one rank ended. `status`: as of a process, below 0 a signal. `words`: its last ones."""

    rank: int
    status: int
    words: str


class JobFailedError(RuntimeError):
    """A rank failed or the job took too long; `ended`: every rank that ended, first come first."""

    def __init__(self, why: str, ended: Sequence[Ended], out: Path) -> None:
        """Put the last words of all ranks into the message."""
        super().__init__(f"{why}:\n{_words(out)}")
        self.ended = tuple(ended)


def launch(
    options: JobOptions,
    environment: Mapping[str, str],
    within_s: float = WITHIN_S,
    *,
    ranks: int = RANKS,
) -> Launched:
    """Run the job to its end, one process per rank, without a launcher's agent, in `options.out`.

    Raises:
        JobFailedError: a rank failed, or it took too long.
    """
    out = Path(options.out)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        **environment,
        VARIABLE: options.to_text(),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    began_s = time.monotonic()
    processes = []
    try:
        for rank in range(ranks):
            with (out / f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, "-m", "benchmarks.switch.job"]
                own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                processes.append(
                    subprocess.Popen(command, env=own, cwd=out, stdout=log, stderr=log)
                )
        ended = ended_ranks(processes, out, began_s + within_s)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(each.status for each in ended):
        raise JobFailedError("the job failed", ended, out)
    if len(ended) < ranks:
        raise JobFailedError(f"the job was not over after {within_s:g} s", ended, out)
    return _read(out, began_s)


def ended_ranks(
    processes: Sequence[subprocess.Popen[bytes]], out: Path, until_s: float
) -> list[Ended]:
    """Wait until all have ended, or one failed and the others had time to say so."""
    ended: dict[int, Ended] = {}
    while len(ended) < len(processes) and time.monotonic() < until_s:
        time.sleep(POLL_S)
        for rank, process in enumerate(processes):
            if rank not in ended and process.poll() is not None:
                log = (out / f"rank-{rank}.log").read_text(errors="replace")
                ended[rank] = Ended(rank=rank, status=process.returncode, words=log[-4000:])
                if process.returncode:
                    until_s = min(until_s, time.monotonic() + LAST_WORDS_S)
    return list(ended.values())


def _words(out: Path) -> str:
    """The end of every rank's log."""
    logs = sorted(out.glob("rank-*.log"))
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in logs)


def _read(out: Path, began_s: float) -> Launched:
    left: list[Left] = []
    began: list[Began] = []
    for path in sorted(out.glob("rank-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            data = json.loads(line)
            if data.pop("kind") == "Left":
                left.append(Left(**data))
            else:
                began.append(Began(**data))
        path.unlink()
    return Launched(began_s=began_s, left=tuple(left), began=tuple(began))


def switch_job(
    folder: Path,
    config: str,
    layouts: Sequence[Layout],
    count: int,
    environment: Mapping[str, str],
    *,
    model: Mapping[str, int] | None = None,
    compiled: str = "",
    own_group: bool = False,
    ranks: int = RANKS,
    within_s: float = WITHIN_S,
) -> Launched:
    """Let the job switch `count` times in place; `model` to `own_group`: see `JobOptions`.

    Raises:
        RuntimeError: a switch was not confirmed.
    """
    out = folder / "out"
    out.mkdir()
    options = JobOptions(
        preset=config,
        layout=layouts[0].to_dict(),
        folder=str(folder / "checkpoints"),
        out=str(out),
        switches=count,
        model=dict(model or {}),
        compiled=compiled,
        own_group=own_group,
    )
    with OrderGiver(folder / "orders", out, stops(layouts, count)) as giver:
        url = {"WATTMESH_URL": f"unix://{folder / 'orders'}"}
        ran = launch(options, {**url, **environment}, within_s, ranks=ranks)
        told = giver.confirmed
    if len(told) != count:
        raise RuntimeError(f"{len(told)} of {count} switches stood:\n{_words(out)}")
    return Launched(began_s=ran.began_s, left=ran.left, began=ran.began, told=tuple(told))


def restart_job(folder: Path, config: str, number: int) -> Launched:
    """Start the run again from a copy of its newest checkpoint, and train one step."""
    here = folder / f"restart-{number}"
    here.mkdir()
    for name in ("checkpoints", "out"):
        (here / name).mkdir()
    newest = max((folder / "checkpoints").glob("step-*"))
    shutil.copytree(newest, here / "checkpoints" / newest.name)
    shutil.copy(folder / "checkpoints" / "run.json", here / "checkpoints")
    options = JobOptions(
        preset=config,
        layout={},
        folder=str(here / "checkpoints"),
        out=str(here / "out"),
        switches=0,
    )
    ran = launch(options, {})
    shutil.rmtree(here)
    return ran


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder on the disk that temporary files go to."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-") as name:
        yield Path(name)
