"""Watches the ranks of a launch from outside: their memory and how much they compute.

It finds them among the launcher's descendants by RANK in their environment. Invariant: it only
looks, except that fake GPUs which nothing drives are loaded as their rank's processor time says.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from wattmesh.controller.process.children import descendants
from wattmesh.telemetry.fake_nvml import FakeGpu

_EVERY_S = 0.25
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Resident bytes of one rank's process at one moment."""

    at_s: float
    rank: int
    resident_bytes: int


class RankWatch:
    """Context manager that looks in a thread until it is left.

    Attributes:
        memory: all readings. driven: whether the job itself drives fake GPUs.
    """

    def __init__(self, gpus: tuple[FakeGpu, ...] = ()) -> None:
        """Prepare; `gpus`: fake ones, in the order of ranks."""
        self._gpus = gpus
        self._launcher_pid = 0
        self._ranks: dict[int, int] = {}
        self._cpu: dict[int, tuple[float, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self.memory: list[MemoryReading] = []
        self.driven = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def below(self, launcher_pid: int) -> None:
        """Look below this process from now on."""
        self._launcher_pid = launcher_pid

    def peak_bytes(self, start_s: float, end_s: float, ranks: int) -> int | None:
        """Return the most that one of the first `ranks` ranks had in a window; None: not seen."""
        found = (
            each.resident_bytes
            for each in list(self.memory)
            if start_s <= each.at_s <= end_s and each.rank < ranks
        )
        return max(found, default=None)

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            if self._launcher_pid:
                self._look()

    def _look(self) -> None:
        now_s = time.monotonic()
        for pid, _ in descendants(self._launcher_pid):
            rank = self._ranks.get(pid)
            if rank is None:
                rank = _rank(pid)
                if rank is None:
                    continue
                self._ranks[pid] = rank
            resident_bytes = _resident_bytes(pid)
            if resident_bytes:
                self.memory.append(
                    MemoryReading(at_s=now_s, rank=rank, resident_bytes=resident_bytes)
                )
                self._drive(rank, pid)

    def _drive(self, rank: int, pid: int) -> None:
        """Load a fake GPU by its rank's share of a processor, unless the job drives it."""
        if rank >= len(self._gpus):
            return
        gpu = self._gpus[rank]
        owned = gpu.truth().owner_pid is not None
        self.driven = self.driven or owned
        now_s, used_s = time.monotonic(), _cpu_s(pid)
        before_s, before_used_s = self._cpu.get(pid, (now_s, used_s))
        self._cpu[pid] = (now_s, used_s)
        if owned or now_s <= before_s:
            return
        share = (used_s - before_used_s) / (now_s - before_s)
        # One that the job drives is idle whenever the job lets go of it.
        gpu.load(0.0 if self.driven else min(1.0, max(0.0, share)))


def _rank(pid: int) -> int | None:
    """Give a process's RANK from its environment; None when it is no rank."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    ranks = [each[5:] for each in variables if each.startswith(b"RANK=")]
    return int(ranks[0]) if ranks and ranks[0].isdigit() else None


def _resident_bytes(pid: int) -> int:
    """Give a process's resident memory; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def _cpu_s(pid: int) -> float:
    """Give the processor time of a process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    except (OSError, IndexError, ValueError):
        return 0.0
