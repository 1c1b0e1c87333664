"""The processes of this job on this host: known by pid and start time, and ended when they must.

A stopped process (SIGSTOP, a debugger) cannot end itself, and a launcher that waits for it waits
30 s. Whoever notices a failure therefore ends stopped peers at once.

Invariant: a pid is only signalled when its start time is the one that the peer itself reported,
and only where pids mean the same: on the same kernel, under the same host name, in the same
namespace. Anywhere else a peer is judged by what it says through the store alone.
"""

import os
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from wattmesh.reconfig.wire import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer(Message):
    """One rank's process.

    Attributes:
        gpu: its device; "" where that is not known, `gpu_unknown` says why, or where it has none.
        started: kernel ticks since boot, which tells a reused pid apart.
        pids: which kernel and namespace its pid belongs to; two hosts may share a name.
    """

    rank: int
    host: str
    pid: int
    started: int
    gpu: str = ""
    gpu_unknown: str = ""
    pids: str = ""

    @classmethod
    def here(cls, rank: int, gpu: str, gpu_unknown: str = "") -> Self:
        """Describe this very process."""
        pid = os.getpid()
        _, started = _stat(pid)
        return cls(
            rank=rank,
            host=socket.gethostname(),
            pid=pid,
            started=started,
            gpu=gpu,
            gpu_unknown=gpu_unknown,
            pids=f"{boot_id()} {_pid_namespace()}",
        )

    def beside(self, other: "Peer") -> bool:
        """Whether both run on one host, so that one can see and end the other."""
        return (self.host, self.pids) == (other.host, other.pids)

    def alive(self) -> bool:
        """Whether the process still runs (or is stopped); only meaningful on its own host."""
        state, started = _stat(self.pid)
        return state not in ("", "Z", "X") and started == self.started

    def stopped(self) -> bool:
        """Whether the process is held by SIGSTOP or a debugger, and so cannot end itself."""
        state, started = _stat(self.pid)
        return state in ("T", "t") and started == self.started

    def kill(self) -> None:
        """End the process now (SIGKILL), if it is still the one that introduced itself."""
        if self.alive():
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return


def end_stopped(peers: Iterable[Peer]) -> list[int]:
    """End every stopped peer; gives their ranks."""
    stopped = [peer for peer in peers if peer.stopped()]
    for peer in stopped:
        peer.kill()
    return [peer.rank for peer in stopped]


def end_stragglers(peers: Iterable[Peer], grace_s: float) -> list[int]:
    """Give peers `grace_s` to end by themselves, then end those left; gives their ranks."""
    waiting = list(peers)
    until = time.monotonic() + grace_s
    while waiting and time.monotonic() < until:
        waiting = [peer for peer in waiting if peer.alive()]
        end_stopped(waiting)
        time.sleep(0.05)
    left = [peer for peer in waiting if peer.alive()]
    for peer in left:
        peer.kill()
    return [peer.rank for peer in left]


def boot_id() -> str:
    """Which boot of which kernel clocks and pids belong to; "" where nothing says so."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, int]:
    """State letter and start time of a process; ("", 0) when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "", 0
    # The name in parentheses may itself hold spaces and parentheses.
    after_name = text.rpartition(")")[2].split()
    return after_name[0], int(after_name[19])
