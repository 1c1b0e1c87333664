"""The machine a figure was measured on, in the words a reader compares by."""

import os
import platform
from pathlib import Path
from typing import Any


def _first_value(path: Path, key: str) -> str:
    """Read the first `key: value` line of a /proc file; "" when there is none."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(key))
    return next(values, "")


def describe() -> dict[str, Any]:
    """Describe this machine. `load_1min` tells how busy it was with other things."""
    memory_kib = _first_value(Path("/proc/meminfo"), "MemTotal").split()
    return {
        "cpu": _first_value(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory_kib[0]) / 2**20, 1) if memory_kib else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def in_words(machine: dict[str, Any]) -> str:
    """Say the same in one line."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}, load {machine['load_1min']} before"
    )
