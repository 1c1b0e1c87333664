"""Whatever way the demo ends, what it started is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wattmesh.controller.process.children import (
    Child,
    ChildFailed,
    Children,
    descendants,
    start_time,
    wait_for,
)

PARENT = """
import subprocess, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def run(children: Children, folder: Path, code: str) -> tuple[Path, Child]:
    """Start Python code as a child of the demo."""
    log = folder / "logs" / "x.log"
    words = [sys.executable, "-c", code]
    return log, children.start("helper", words, log=log, environment={})


def test_leaving_the_block_ends_grandchildren_in_sessions_of_their_own(tmp_path: Path) -> None:
    """A process that ignores SIGTERM, and its child in another session, are both gone."""
    before = set(descendants(os.getpid()))  # servers that other tests share
    with Children() as children:
        log, _ = run(children, tmp_path, PARENT)
        wait_for(lambda: log.read_text().strip().isdigit(), limit_s=20, what="starting")
        grandchild = int(log.read_text())
        started = start_time(grandchild)
        assert started
        assert (grandchild, started) in descendants(os.getpid())
        for child in children.all:
            child.stop(grace_s=0.2)
    wait_for(lambda: start_time(grandchild) != started, limit_s=5, what="ending")
    assert set(descendants(os.getpid())) <= before


def test_what_it_started_ends_when_it_is_killed(tmp_path: Path) -> None:
    """Nobody is left to clean up: a daemon once ran on at full speed for hours."""
    log = tmp_path / "child.log"
    starts = (
        "import sys, time; from pathlib import Path\n"
        "from wattmesh.controller.process.children import Child\n"
        f"Child('helper', [sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); "
        f"time.sleep(600)'], log=Path({str(log)!r}), environment={{}})\n"
        "time.sleep(600)"
    )
    demo = subprocess.Popen([sys.executable, "-c", starts])
    wait_for(lambda: log.exists() and log.read_text().strip().isdigit(), limit_s=20, what="it")
    pid = int(log.read_text())
    started = start_time(pid)
    demo.kill()
    demo.wait()
    wait_for(lambda: start_time(pid) != started, limit_s=20, what="its end")


def test_a_failed_child_says_where_its_log_is(tmp_path: Path) -> None:
    """A child that fails becomes one sentence with its last words and its log."""
    with Children() as children:
        log, _ = run(children, tmp_path, "raise SystemExit('no room left')")
        child = children.all[0]
        with pytest.raises(ChildFailed, match=r"helper ended with status 1 .*no room left.*x\.log"):
            child.finish(limit_s=20)
        assert log.exists()


def test_a_child_that_does_not_end_is_not_waited_for(tmp_path: Path) -> None:
    """`finish` gives up at its limit and says so; the block then ends the child."""
    with Children() as children:
        run(children, tmp_path, "import time; time.sleep(600)")
        with pytest.raises(ChildFailed, match="was not done after 0 s"):
            children.all[0].finish(limit_s=0.1)
        pid = children.all[0].pid
    assert not start_time(pid)


def test_waiting_ends_when_a_needed_child_is_gone(tmp_path: Path) -> None:
    """Waiting for a condition stops at once when the process that would bring it has ended."""
    with Children() as children:
        run(children, tmp_path, "pass")
        with pytest.raises(ChildFailed, match="ended early"):
            wait_for(lambda: False, limit_s=20, what="never", needed=children.all)


def test_a_second_interrupt_does_not_stop_the_clean_up(tmp_path: Path) -> None:
    """While the block ends its processes, SIGINT is ignored; afterwards it works as before."""
    before = signal.getsignal(signal.SIGINT)
    with Children() as children:
        run(children, tmp_path, "import time; time.sleep(600)")
        pid = children.all[0].pid
    assert not start_time(pid)
    assert signal.getsignal(signal.SIGINT) is before
