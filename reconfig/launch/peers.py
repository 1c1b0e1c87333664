"""The processes of this job on this host: identified by pid and start time, and ended if need be.

A stopped process (SIGSTOP, a debugger) cannot end itself, and a launcher waits 30 s for it. So the
rank that notices a failure ends stopped peers at once.

Invariant: a pid is only signalled if its start time is the one that the peer itself reported, and
only in the same pid namespace of the same boot, under the same host name. Any other peer is judged
only by what it writes to the store.
"""

import os
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from wattmesh.reconfig.wire.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess(Message):
    """One rank's process.

    Attributes:
        gpu: UUID of its GPU; "" if it has none or it is unknown.
        gpu_unknown: why the GPU is unknown; "" otherwise.
        allocated, allocated_unknown: GPUs that the scheduler gave the job on its node, used or not;
            why they are unknown.
        started: start time in clock ticks since boot, which tells a reused pid apart.
        pids: boot id and pid namespace of its pid, because two hosts may share a name.
    """

    rank: int
    host: str
    pid: int
    started: int
    gpu: str = ""
    gpu_unknown: str = ""
    allocated: tuple[str, ...] = ()
    allocated_unknown: str = ""
    pids: str = ""

    @classmethod
    def here(
        cls,
        rank: int,
        gpu: str,
        gpu_unknown: str = "",
        allocated: tuple[str, ...] = (),
        allocated_unknown: str = "",
    ) -> Self:
        """Describe the calling process."""
        pid = os.getpid()
        _, started = state_and_start(pid)
        return cls(
            rank=rank,
            host=socket.gethostname(),
            pid=pid,
            started=started,
            gpu=gpu,
            gpu_unknown=gpu_unknown,
            allocated=allocated,
            allocated_unknown=allocated_unknown,
            pids=_pids(),
        )

    @property
    def where(self) -> str:
        """Its host, as `host_here` tells it there."""
        return f"{self.host} {self.pids}"

    def shares_host_with(self, other: "RankProcess") -> bool:
        """Return whether both share a host and pid namespace, so that one can end the other."""
        return self.where == other.where

    def alive(self) -> bool:
        """Return whether the process still runs or is stopped; for one that shares this host."""
        state, started = state_and_start(self.pid)
        return state not in ("", "Z", "X") and started == self.started

    def stopped(self) -> bool:
        """Return whether SIGSTOP or a debugger holds the process, so that it cannot end itself."""
        state, started = state_and_start(self.pid)
        return state in ("T", "t") and started == self.started

    def kill(self) -> None:
        """Send SIGKILL, if the pid still belongs to the process that introduced itself."""
        if self.alive():
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return


def end_stopped(peers: Iterable[RankProcess]) -> list[int]:
    """Kill every stopped peer; return their ranks."""
    stopped = [peer for peer in peers if peer.stopped()]
    for peer in stopped:
        peer.kill()
    return [peer.rank for peer in stopped]


def end_stragglers(peers: Iterable[RankProcess], grace_s: float) -> list[int]:
    """Let peers end by themselves for `grace_s`, then kill those left; return their ranks."""
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


def host_here() -> str:
    """Return the name of this host and, after a space, the boot and namespace of its pids.

    Processes for which it is equal may signal each other, and open each other's files in /proc.
    """
    return f"{socket.gethostname()} {_pids()}"


def boot_id() -> str:
    """Return the kernel's boot id, which tells whose clocks and pids compare; "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pids() -> str:
    return f"{boot_id()} {_pid_namespace()}"


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def state_and_start(pid: int) -> tuple[str, int]:
    """Return state letter and start time (ticks) of a process; ("", 0) if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "", 0
    # The name in parentheses may itself hold spaces and parentheses.
    after_name = text.rpartition(")")[2].split()
    return after_name[0], int(after_name[19])
