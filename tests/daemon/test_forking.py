"""A process that tests fork is as one that a new interpreter becomes."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.forking import Process, start, start_anew

SIGHT = "tests.daemon.forked_sight"
Start = Callable[..., Process]


def told(begin: Start, folder: Path, status: int) -> tuple[int, dict[str, Any]]:
    """Let a process end with a status, and give it with what it found around it."""
    environment = {**os.environ, "TZ": "Asia/Kolkata", "ONLY_HERE": "1"}
    path = folder / f"{begin.__name__}.log"
    with path.open("wb") as log:
        process = begin(SIGHT, str(status), "--more", log=log, environment=environment)
    ended = process.wait(60.0)
    assert process.poll() == ended
    found: dict[str, Any] = json.loads(path.read_text())
    return ended, found


@pytest.mark.parametrize(
    ("way", "ends"),
    [
        ("nothing", (0, "")),
        ("exit", (0, "")),
        ("sentence", (1, "a sentence\n")),
        ("thread", (0, "after main\n")),
        ("atexit", (0, "at exit\n")),
    ],
)
@pytest.mark.parametrize("begin", [start, start_anew])
def test_it_ends_as_an_interpreter_ends(
    tmp_path: Path, begin: Start, way: str, ends: tuple[int, str]
) -> None:
    """The status of what main raises or returns, its words, its threads, what is due at exit."""
    path = tmp_path / "log"
    with path.open("wb") as log:
        process = begin(SIGHT, way, log=log)
    assert (process.wait(60.0), path.read_text()) == ends


def test_it_has_the_file_mode_mask_of_who_starts_it(tmp_path: Path) -> None:
    """Not the one that the worker had when it first started something."""
    with (tmp_path / "first").open("wb") as log:
        start(SIGHT, "0", log=log).wait(60.0)
    before = os.umask(0o027)
    try:
        forked, anew = told(start, tmp_path, 0), told(start_anew, tmp_path, 0)
    finally:
        os.umask(before)
    assert forked == anew
    assert forked[1]["umask"] == "0027"


@pytest.mark.parametrize("status", [0, 3, -signal.SIGKILL])
def test_it_finds_what_a_new_interpreter_finds(tmp_path: Path, status: int) -> None:
    """Its words, environment, folder and signals, no descriptor of others; its status comes."""
    bystander = Path("/dev/null").open("rb")  # noqa: SIM115 - closed below
    with bystander, (tmp_path / "other.log").open("wb") as log:
        other = start(SIGHT, "0", log=log)
        forked, anew = told(start, tmp_path, status), told(start_anew, tmp_path, status)
        other.wait(60.0)
    assert forked == anew
    assert forked[0] == status
    assert forked[1]["descriptors"] == [0, 1, 2]


def test_one_that_lives_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    """A limit that passes is an error; then it is ended by a signal, and its status says which."""
    with (tmp_path / "log").open("wb") as log:
        process = start(SIGHT, "stay", log=log)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60.0) == -signal.SIGKILL
    process.send_signal(signal.SIGTERM)  # nobody has its number now: nothing is sent


def test_one_that_fails_says_why_in_its_log(tmp_path: Path) -> None:
    """What is raised ends it with status 1 and a traceback."""
    with (tmp_path / "log").open("wb") as log:
        assert start(SIGHT, "no number", log=log).wait(60.0) == 1
    assert "ValueError: invalid literal for int()" in (tmp_path / "log").read_text()
