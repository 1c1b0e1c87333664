"""Asks systemd inside: its units, their processes, and what is written about them."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def said(*words: str, ok: bool = True, limit_s: float = 200.0) -> str:
    """Run a program; give what it printed.

    Raises:
        RuntimeError: it failed, where `ok`.
    """
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=limit_s, env=PLACE
    )
    if ok and done.returncode != 0:
        raise RuntimeError(f"{words} ended {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


PLACE = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "COLUMNS": "120"}


def timed(*words: str) -> float:
    """Run a program; give the seconds that it took."""
    began_s = time.monotonic()
    said(*words)
    return time.monotonic() - began_s


def shown(unit: str, *names: str) -> dict[str, str]:
    """Ask for properties of a unit."""
    text = said("systemctl", "show", unit, f"--property={','.join(names)}")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def pid_of(unit: str) -> int:
    """Give a service's main process; 0 without one."""
    return int(shown(unit, "MainPID")["MainPID"])


def restarts(unit: str) -> int:
    """Say how often systemd started it again by itself."""
    return int(shown(unit, "NRestarts")["NRestarts"])


def status_of(pid: int) -> dict[str, str]:
    """Read what the kernel says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def log(unit: str) -> str:
    """Read what a unit has written."""
    return said("journalctl", "--no-pager", "-o", "cat", "-u", unit)


def probed(unit: str) -> dict[str, Any]:
    """Run a unit that holds the probe; give what it said."""
    said("systemctl", "start", unit)
    said("journalctl", "--sync")
    lines = [line for line in log(unit).splitlines() if line.startswith("PROBE ")]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("PROBE "))
    return found


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 90.0) -> float:
    """Wait until it holds; give the seconds that it took.

    Raises:
        RuntimeError: it did not in time.
    """
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > limit_s:
            raise RuntimeError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.05)
    return time.monotonic() - began_s
