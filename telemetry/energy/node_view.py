"""Reads the processes on a node's GPUs: the driver's pids, looked up in /proc.

It reads and decides nothing. Invariant: all facts about a pid are of one process (its start time is
read before and after), and a zombie does not count, because it holds no GPU any more.
"""

import os
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from wattmesh.telemetry.energy.attribution import NodeView, Process

PROC = Path("/proc")

DEAD = frozenset("ZXx")
"""States of proc_pid_stat(5) of a thread that has ended."""

TRIES = 3
"""Attempts to read a process with the same start time before and after."""

_FIRST_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_SLURM = re.compile(r"(?:slurmstepd\.scope|/slurm(?:_[^/]+)?/uid_\d+)/job_(\d+)(?:/|$)")
_POD = re.compile(
    r"kubepods[^/]*(?:/[^/]+)*?/(?:[^/]*-)?pod"
    r"([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?:\.slice)?(?:/|$)"
)
_UNIT = re.compile(r"/([^/]+\.(?:scope|service))(?:/|$)")


class ComputePids(Protocol):
    """The driver's list of compute processes."""

    def __call__(self) -> Mapping[str, Sequence[int]]:
        """List pids by GPU UUID; a GPU that could not be read is left out.

        Raises:
            SourceUnavailable: no GPU could be read.
        """
        ...


class Looker:
    """Reads the processes of one node, step after step."""

    def __init__(self, proc: Path = PROC, host: str | None = None) -> None:
        """Set the root of the process table, and the host name (default: the machine's)."""
        self._proc = proc
        self._host = socket.gethostname() if host is None else host
        self._whole = _shows_all(proc)
        self._met: set[int] = set()

    def look(self, pids: Mapping[str, Sequence[int]], registered: Iterable[int] = ()) -> NodeView:
        """Read the processes that compute on each GPU.

        Args:
            pids: the driver's list, by GPU.
            registered: further pids to read: those that registered a run from this host.
        """
        listed = {pid for each in pids.values() for pid in each}
        found = {pid: self._process(pid) for pid in listed.union(registered)}
        shown = {pid for pid, each in found.items() if each is not None and each.uid is not None}
        self._met = shown | self._met.intersection(found)
        users = {
            gpu: tuple(each for each in map(found.get, dict.fromkeys(given)) if each is not None)
            for gpu, given in pids.items()
        }
        known = {each.pid: each for each in map(found.get, registered) if each is not None}
        return NodeView(host=self._host, users=users, known=known)

    def _process(self, pid: int) -> Process | None:
        """Read one process; None when it has ended."""
        found = process(pid, self._proc)
        if found is not None and found.uid is None and (self._whole or pid in self._met):
            return None  # /proc would show it if it were alive
        return found


def process(pid: int, proc: Path = PROC) -> Process | None:
    """Read one process; None when it has ended. `uid` None: /proc does not show it."""
    folder = proc / str(pid)
    for _ in range(TRIES):
        try:
            before = _stat(folder)
            if before.state in DEAD and not _lives_on(folder):
                return None
            uid = _uid((folder / "status").read_text())
            job = job_key((folder / "cgroup").read_text())
            after = _stat(folder)
        except (OSError, ValueError, IndexError):
            break
        if before.started_ticks == after.started_ticks:
            return Process(pid=pid, uid=uid, job=job, started_at=_moment(after.started_ticks, proc))
    return Process(pid=pid)


def job_key(cgroup: str) -> str:
    """Find the job that a cgroup belongs to, from the text of /proc/PID/cgroup (v1 or v2).

    Returns `slurm:<job id>`, `pod:<uid>`, or `unit:<name>` of the innermost systemd unit (a login
    session, a service); "" when there is none of them.
    """
    paths = [line.split(":", 2)[2] for line in cgroup.splitlines() if line.count(":") >= 2]
    for path in paths:
        if match := _SLURM.search(path):
            return f"slurm:{match[1]}"
    for path in paths:
        if match := _POD.search(path):
            return f"pod:{match[1].replace('_', '-')}"
    units = [unit for path in paths for unit in _UNIT.findall(path)]
    return f"unit:{units[-1]}" if units else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    """Of proc_pid_stat(5): the state letter, and the start in clock ticks since boot."""

    state: str
    started_ticks: int


def _stat(folder: Path) -> _Stat:
    """Read state and start time; the command's name before them may contain anything."""
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return _Stat(state=fields[0], started_ticks=int(fields[19]))


def _lives_on(folder: Path) -> bool:
    """Tell whether a process whose main thread has ended has other threads that run."""
    try:
        others = [each for each in (folder / "task").iterdir() if each.name != folder.name]
        return any(_stat(each).state not in DEAD for each in others)
    except (OSError, ValueError):
        return False


def _uid(status: str) -> int:
    """Read the effective uid, which is the one that SO_PEERCRED shows."""
    lines = [each.split() for each in status.splitlines() if each.startswith("Uid:")]
    return int(lines[0][2])


def _moment(started_ticks: int, proc: Path) -> datetime | None:
    """Convert clock ticks since boot to wall time."""
    try:
        up_s = float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return datetime.fromtimestamp(time.time() - up_s + started_ticks / _TICKS_PER_S, UTC)


def _shows_all(proc: Path) -> bool:
    """Tell whether this /proc is of the first pid namespace, and so shows every process."""
    try:
        return (proc / "self" / "ns" / "pid").readlink().name == _FIRST_NAMESPACE
    except OSError:
        return False
