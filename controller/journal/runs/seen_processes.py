"""The process of each run on this host, as the kernel named it at the end of a connection.

Invariant: a process is said to have ended only if it was alive while the run spoke through it. A
pid that was only told, perhaps one of another pid namespace, proves nothing.
"""

import threading
from collections import OrderedDict

from wattmesh.reconfig.launch.peers import state_and_start

MOST = 65_536
"""How many runs' processes are remembered; the one that was seen first goes first."""

_ENDED = ("", "Z", "X")


class SeenProcesses:
    """Processes that spoke for runs over the Unix socket, in memory, by run."""

    def __init__(self) -> None:
        """Start with none: a run's next heartbeat shows its process to a new daemon."""
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def see(self, run: str, pid: int) -> None:
        """Remember which process spoke for a run.

        Args:
            run: its id.
            pid: as SO_PEERCRED gives it, in this pid namespace; 0: not known.
        """
        state, started = state_and_start(pid) if pid > 1 else ("", 0)
        with self._lock:
            if state in _ENDED:
                # It may have ended since it spoke; then what was seen of it before still counts.
                if self._seen.get(run, (0, 0))[0] != pid:
                    self._seen.pop(run, None)
                return
            self._seen[run] = (pid, started)
            while len(self._seen) > MOST:
                self._seen.popitem(last=False)

    def has_ended(self, run: str, pid: int) -> bool:
        """Return whether the process that spoke for a run is the one it named, and has ended.

        One that its parent has not reaped has ended too.
        """
        with self._lock:
            seen, started = self._seen.get(run, (0, 0))
        if seen == 0 or seen != pid:
            return False
        state, now_started = state_and_start(pid)
        return state in _ENDED or now_started != started
