"""Which of the processes that the driver lists are alive, and whose they are: read from /proc.

Invariant: a zombie is not alive, even where the driver lists it; a process whose user cannot be
read belongs to nobody.
"""

from collections.abc import Iterable
from pathlib import Path

from wattmesh.telemetry.actuator.rules.facts import GpuProcess

PROC = Path("/proc")
_DEAD = {"Z", "X", "x"}


def living(pids: Iterable[int], proc: Path = PROC) -> tuple[GpuProcess, ...]:
    """Leave out processes that have ended or are zombies.

    Args:
        pids: as the driver lists them, in our pid namespace.
        proc: where the process file system is mounted.
    """
    found = (_process(pid, proc) for pid in pids)
    return tuple(each for each in found if each is not None)


def _process(pid: int, proc: Path) -> GpuProcess | None:
    folder = proc / str(pid)
    status = _status(folder)
    if status is None:
        return None
    if status.get("State", "")[:1] in _DEAD and not _thread_lives(folder):
        return None
    uid = status.get("Uid", "").split()[:1]
    return GpuProcess(pid=pid, uid=int(uid[0]) if uid and uid[0].isdigit() else None)


def _thread_lives(folder: Path) -> bool:
    """Tell whether a thread outlived the main thread, which then shows as a zombie."""
    try:
        threads = list((folder / "task").iterdir())
    except OSError:
        return False
    states = [(_status(each) or {}).get("State", "Z")[:1] for each in threads]
    return any(state not in _DEAD for state in states)


def _status(folder: Path) -> dict[str, str] | None:
    """Parse /proc/PID/status; None when the process is gone."""
    try:
        text = (folder / "status").read_text(errors="replace")
    except OSError:
        return None
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key: value.strip() for key, value in pairs}
