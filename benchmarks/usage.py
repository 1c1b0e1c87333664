"""What a command used, with all processes that it started: seconds, CPU, bytes, memory.

Bytes are those that system calls moved (rchar, wchar of /proc/PID/io): the kernel adds a reaped
child's to its parent's, so one process that runs the command and waits sees them all, once.
"""

import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SAMPLE_S = 0.05

_RUNNER = """
import json, resource, subprocess, sys, time
def moved():
    with open("/proc/self/io") as file:
        lines = dict(line.split(": ") for line in file.read().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])
before, began_s = moved(), time.monotonic()
status = subprocess.call(sys.argv[2:])
wall_s, after = time.monotonic() - began_s, moved()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    json.dump([status, wall_s, used.ru_utime + used.ru_stime, after[0] - before[0],
               after[1] - before[1]], file)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """`peak_rss_mib`: of the largest process; `tree_mib`: private memory of all at once."""

    wall_s: float
    cpu_s: float
    read_gb: float
    written_gb: float
    peak_rss_mib: float
    tree_mib: float
    said: str


def measure(
    command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Used:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed; the last lines it wrote are in the message.
    """
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile("w+") as said:
        facts = Path(name) / "facts.json"
        process = subprocess.Popen(
            [sys.executable, "-c", _RUNNER, str(facts), *command],
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        watch = _Watch(process.pid)
        watch.start()
        process.wait()
        watch.over.set()
        watch.join()
        said.seek(0)
        words = said.read()
        status, wall_s, cpu_s, read, written = json.loads(facts.read_text())
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {status}:\n{words[-2000:]}")
    return Used(
        wall_s=wall_s,
        cpu_s=cpu_s,
        read_gb=read / 1e9,
        written_gb=written / 1e9,
        peak_rss_mib=watch.peak_rss_mib,
        tree_mib=watch.tree_mib,
        said=words,
    )


class _Watch(threading.Thread):
    """Looks at the memory of a process's descendants until it is told to end."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.over = threading.Event()
        self.peak_rss_mib = 0.0
        self.tree_mib = 0.0

    def run(self) -> None:
        """Sample until the end."""
        while not self.over.wait(SAMPLE_S):
            found = [_memory(pid) for pid in _below(self.root)]
            self.peak_rss_mib = max([self.peak_rss_mib, *(rss for rss, _ in found)])
            self.tree_mib = max(self.tree_mib, sum(private for _, private in found))


def children(pid: int) -> list[int]:
    """Pids of a process's own children."""
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for path in paths for each in path.read_text().split()]


def _below(root: int) -> list[int]:
    """Pids of every descendant of a process."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                children = [int(each) for each in path.read_text().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def _memory(pid: int) -> tuple[float, float]:
    """(peak resident, private) MiB of a process; zeros when it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0, 0.0
    peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    private = [line.split()[1] for line in rollup.splitlines() if line.startswith("Private_")]
    return sum(map(int, peak)) / 1024, sum(map(int, private)) / 1024


def tree_cpu_s(pid: int) -> float:
    """Give the processor seconds that a process and all below it have used."""
    waiting, ticks = [pid], 0
    while waiting:
        each = waiting.pop()
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            children = Path(f"/proc/{each}/task").glob("*/children")
            waiting += [int(child) for path in children for child in path.read_text().split()]
        except OSError:  # it has just ended
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def drop_caches(folder: Path) -> None:
    """Write a folder's files out and let go of their pages, so that the next read is cold."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def cached_share(folder: Path) -> float:
    """Share of a folder's bytes that the page cache holds (mincore(2)); 0: a read is cold."""
    held = total = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), dtype=np.uint8)
            bytes_ = np.frombuffer(mapped, dtype=np.uint8)
            address, said = bytes_.ctypes.data, pages.ctypes.data
            del bytes_  # a view of the file would keep it mapped
            asked = [ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(said)]
            if ctypes.CDLL(None, use_errno=True).mincore(*asked):
                raise OSError(ctypes.get_errno(), f"mincore of {path}")
            held, total = held + int((pages & 1).sum()), total + len(pages)
    return held / total if total else 0.0


def synced(folder: Path) -> float:
    """Write a folder's files out; give the seconds that took."""
    began_s = time.monotonic()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    return time.monotonic() - began_s
