"""Who uses a GPU: real processes, alive, dead, unreaped, and with a first thread that left."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wattmesh.telemetry.actuator.processes import living
from wattmesh.telemetry.actuator.rules.facts import GpuProcess

HEADLESS = """\
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(3600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@contextmanager
def running(code: str) -> Iterator[int]:
    """Run Python in a process of its own; it is killed and reaped at the end."""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def state(pid: int) -> str:
    """Give the letter of a process's state."""
    text = Path(f"/proc/{pid}/status").read_text()
    return text.split("State:", 1)[1].split()[0]


def wait_for(pid: int, letter: str) -> None:
    """Wait until a process is in a state."""
    deadline = time.monotonic() + 60
    while state(pid) != letter:
        assert time.monotonic() < deadline, state(pid)
        time.sleep(0.01)


def test_the_living_are_told_with_their_user() -> None:
    """A process is found by its pid and belongs to its real uid."""
    with running("import time; time.sleep(3600)") as pid:
        assert living([pid]) == (GpuProcess(pid=pid, uid=os.getuid()),)


def test_a_zombie_does_not_live() -> None:
    """It has ended; that nobody reaped it changes nothing."""
    with running("pass") as pid:
        wait_for(pid, "Z")
        assert living([pid]) == ()


def test_a_process_whose_first_thread_left_lives() -> None:
    """It shows as a zombie, and works on in its other threads."""
    with running(HEADLESS) as pid:
        wait_for(pid, "Z")
        assert [each.pid for each in living([pid])] == [pid]


def test_nobody_is_nobody() -> None:
    """A pid that is not there is left out."""
    with running("pass") as pid:
        pass
    assert living([pid]) == ()


@pytest.mark.parametrize(
    ("text", "uid"),
    [("State:\tR (running)\nUid:\t7\t8\t8\t8\n", 7), ("State:\tS\n", None), ("Uid:\tx\n", None)],
)
def test_what_cannot_be_read_is_unknown(text: str, uid: int | None, tmp_path: Path) -> None:
    """A user that is not told is nobody's, never root's."""
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "status").write_text(text)
    assert living([42, 43], tmp_path) == (GpuProcess(pid=42, uid=uid),)
