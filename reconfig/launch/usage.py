"""Estimates how many open files and threads the next layout needs, and whether they fit the limits.

Each process group opens connections and starts threads, and what a teardown leaves open adds up
over a long life. A process that reaches a limit during a rebuild fails there. So the need of the
next layout is estimated from earlier ones, and if it exceeds the limit the switch is made by
restart.

Invariant: a layout that was trained in is expected to cost the most that it cost then, any other
one `UNKNOWN` times the most that any layout cost.
"""

import os
import resource
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

KEPT_FREE = 0.1
"""Share of a limit that is reserved for the job's own files and threads."""

UNKNOWN = 2.0
"""Factor for a layout that this process has not trained in: it may have more groups."""

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Open files and threads that one process has, or may have (infinity: no limit)."""

    files: float
    threads: float


def now() -> Usage:
    """Return the open files and threads of this process."""
    return Usage(files=len(os.listdir("/proc/self/fd")), threads=len(os.listdir("/proc/self/task")))


def limits(used: Usage, sharers: int) -> Usage:
    """Return how many open files and threads this process may have.

    Args:
        used: what it has now.
        sharers: processes like this one in the same cgroup; they share the threads left in it.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = float("inf") if soft == resource.RLIM_INFINITY else float(soft)
    return Usage(files=files, threads=used.threads + _threads_left(_CGROUPS) / max(sharers, 1))


def _threads_left(root: Path) -> float:
    """Return how many threads this process's cgroups (v2) still allow; infinity: no limit."""
    left = float("inf")
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
        inside = next((line[3:] for line in lines if line.startswith("0::")), "/")
        folder = root / inside.strip("/")
        while folder != root.parent:
            left = min(left, _left_in(folder))
            folder = folder.parent
    return left


def _left_in(folder: Path) -> float:
    try:
        most = (folder / "pids.max").read_text(encoding="ascii").strip()
        if most == "max":
            return float("inf")
        return float(most) - float((folder / "pids.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return float("inf")


@dataclass(slots=True)
class Budget:
    """What this process has learned of its layouts' costs."""

    _floors: list[Usage] = field(default_factory=list)
    _costs: dict[Hashable, Usage] = field(default_factory=dict)
    _key: Hashable = None

    def begin(self, key: Hashable, used: Usage) -> None:
        """Note that layout `key` is about to be built; `used` is the usage before that."""
        self._floors = [*self._floors[-1:], used]
        self._key = key

    def settled(self, used: Usage) -> None:
        """Note that the layout begun last trains, with `used` in total."""
        if self._floors:
            floor, before = self._floors[-1], self._costs.get(self._key)
            self._costs[self._key] = Usage(
                files=max(used.files - floor.files, before.files if before else 0),
                threads=max(used.threads - floor.threads, before.threads if before else 0),
            )

    def problem(self, key: Hashable, allowed: Usage) -> str:
        """Say why the layout `key` does not fit `allowed`; "" when it does or nothing is known."""
        if not self._costs:
            return ""
        for name, words, help_ in (
            ("files", "open files", "raise the limit (ulimit -n)"),
            ("threads", "threads", "raise pids.max of its control group"),
        ):
            limit, needed = getattr(allowed, name), self._needed(key, name)
            if needed > (1 - KEPT_FREE) * limit:
                return (
                    f"the next layout would need about {needed:.0f} {words}, and this process may "
                    f"have {limit:.0f}, of which {KEPT_FREE:.0%} are kept free; {help_}, or let "
                    "switches go by restart"
                )
        return ""

    def _needed(self, key: Hashable, name: str) -> float:
        """Estimate the need: usage after a teardown, its latest growth, and the layout's cost."""
        floors = [float(getattr(each, name)) for each in self._floors]
        growth = max(floors[-1] - floors[0], 0.0)
        known = self._costs.get(key)
        cost = (
            float(getattr(known, name))
            if known is not None
            else UNKNOWN * max(float(getattr(each, name)) for each in self._costs.values())
        )
        return floors[-1] + growth + cost
