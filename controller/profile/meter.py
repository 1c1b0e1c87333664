"""Watches a profiled job from outside: its GPUs' energy counters and its ranks' memory.

Invariant: only readings are kept; `wattmesh.controller.profile.numbers` computes from them
afterwards.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wattmesh.controller.process.children import descendants
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.readings import PowerSource

_READ_EVERY_S = 0.02
_MEMORY_EVERY = 15
_PAGE_BYTES = 4096


@dataclass(slots=True)
class Counter:
    """One device's energy counter over time."""

    at_s: list[float] = field(default_factory=list)
    energy_j: list[float] = field(default_factory=list)

    def joules(self, start_s: float, end_s: float) -> float:
        """Give the joules drawn in [start_s, end_s], by linear interpolation between readings."""
        return self._at(end_s) - self._at(start_s)

    def _at(self, moment_s: float) -> float:
        """Give the counter in J at a moment; outside the readings, the nearest reading."""
        after = bisect_left(self.at_s, moment_s)
        if after == 0 or after == len(self.at_s):
            return self.energy_j[min(after, len(self.at_s) - 1)] if self.at_s else 0.0
        before = after - 1
        share = (moment_s - self.at_s[before]) / (self.at_s[after] - self.at_s[before])
        return self.energy_j[before] + share * (self.energy_j[after] - self.energy_j[before])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Resident bytes of one rank's process at one moment."""

    at_s: float
    rank: int
    resident_bytes: int


class PowerRecorder:
    """Context manager that reads in a thread until it is left."""

    def __init__(self, source: PowerSource) -> None:
        """Watch the devices of `source`, and the ranks below the pid that `watch_memory` gets."""
        self._source = source
        self._launcher_pid = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)
        self.counters: dict[str, Counter] = {uuid: Counter() for uuid in source.gpu_uuids()}
        self.memory: list[MemoryReading] = []

    def __enter__(self) -> "PowerRecorder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def watch_memory(self, launcher_pid: int) -> bool:
        """Watch the ranks below `launcher_pid` from now on; never asks for the walk's end."""
        self._launcher_pid = launcher_pid
        return False

    def _watch(self) -> None:
        count = 0
        while not self._stop.wait(_READ_EVERY_S):
            self._read_power()
            if self._launcher_pid and count % _MEMORY_EVERY == 0:
                self._read_memory()
            count += 1

    def _read_power(self) -> None:
        try:
            readings = self._source.read()
        except SourceUnavailable:
            return
        for reading in readings:
            counter = self.counters.get(reading.gpu_uuid)
            if counter is not None and reading.energy_mj is not None:
                counter.at_s.append(reading.monotonic_s)
                counter.energy_j.append(reading.energy_mj / 1000)

    def _read_memory(self) -> None:
        now_s = time.monotonic()
        for pid, _ in descendants(self._launcher_pid):
            rank = _rank(pid)
            resident_bytes = _resident_bytes(pid)
            if rank is not None and resident_bytes:
                self.memory.append(
                    MemoryReading(at_s=now_s, rank=rank, resident_bytes=resident_bytes)
                )


def _rank(pid: int) -> int | None:
    """Give a process's RANK from its environment; None when it is no rank."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    ranks: Sequence[bytes] = [each[5:] for each in variables if each.startswith(b"RANK=")]
    return int(ranks[0]) if ranks and ranks[0].isdigit() else None


def _resident_bytes(pid: int) -> int:
    """Give a process's resident memory; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
