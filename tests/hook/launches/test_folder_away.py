"""A supervisor whose run folder, or what starts its launches, is away for a while."""

import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from wattmesh.errors import SourceUnavailable
from wattmesh.reconfig.launcher import supervisor as module
from wattmesh.reconfig.launcher.supervisor import (
    EXIT_FINISHED,
    EXIT_GAVE_UP,
    EXIT_STOPPED,
    Supervisor,
)

FIRST = """
mkdir -p run/step-00000010
sleep 0.5
echo '{"outcome": "restart", "sentence": "as planned"}' > "$WATTMESH_OUTCOME_FILE"
mv run away
"""
NEXT = """
echo "$(ls run)" >> launched
echo '{"outcome": "done", "sentence": "as planned"}' > "$WATTMESH_OUTCOME_FILE"
"""


class ShellLaunch:
    """One launch: a shell, and what it may be asked."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Watch it."""
        self._process = process
        self.poll = process.poll

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()


class ShellLauncher:
    """Starts a shell for each launch."""

    def __init__(self, folder: Path, away: int = 0) -> None:
        """Start them in `folder`; the first `away` times it does not answer."""
        self.folder, self.count, self.away = folder, 0, away

    def launch(self, environment: Mapping[str, str]) -> ShellLaunch:
        """Start one."""
        self.away -= 1
        if self.away >= 0:
            raise SourceUnavailable("the test's launcher is away")
        self.count += 1
        words = ("sh", "-c", FIRST if self.count == 1 else NEXT)
        path = {"PATH": "/usr/bin:/bin", **environment}
        return ShellLaunch(subprocess.Popen(words, cwd=self.folder, env=path))


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let supervisors see each checkpoint."""
    monkeypatch.setattr(module, "STEP_LOOK_S", 0.0)


def supervised(folder: Path) -> tuple[Supervisor, ShellLauncher, threading.Thread, list[str]]:
    """Supervise until the folder is missed."""
    launcher, said = ShellLauncher(folder), list[str]()
    supervisor = Supervisor(launcher, folder / "run", say=said.append)
    thread = threading.Thread(target=lambda: said.append(f"status {supervisor.run()}"))
    thread.start()
    wait_for(lambda: "holds no checkpoint" in "".join(said), "that the folder is missed")
    return supervisor, launcher, thread, said


def test_a_run_whose_checkpoints_are_away_waits_for_them(tmp_path: Path) -> None:
    """It is launched again once they are back, and not before."""
    _, launcher, thread, said = supervised(tmp_path)
    assert launcher.count == 1
    assert not (tmp_path / "run").exists()
    (tmp_path / "away").rename(tmp_path / "run")
    thread.join(60.0)
    assert said[-1] == f"status {EXIT_FINISHED}"
    assert (tmp_path / "launched").read_text().split() == ["step-00000010"]


def test_a_run_whose_checkpoints_are_away_can_be_stopped(tmp_path: Path) -> None:
    """It ends with a sentence, and has begun nothing."""
    supervisor, launcher, thread, said = supervised(tmp_path)
    supervisor.ask_to_stop()
    thread.join(60.0)
    assert said[-1] == f"status {EXIT_GAVE_UP}"
    assert said[-2].startswith("giving up: the run was at step 10")
    assert launcher.count == 1


def test_a_launch_that_cannot_be_started_now_is_no_failure(tmp_path: Path) -> None:
    """It is started once what starts it answers, however few failures are allowed."""
    (tmp_path / "run" / "step-00000010").mkdir(parents=True)
    launcher, said = ShellLauncher(tmp_path, away=2), list[str]()
    launcher.count = 1
    supervisor = Supervisor(launcher, tmp_path / "run", max_restarts=0, say=said.append)
    assert supervisor.run() == EXIT_FINISHED
    assert sum("nothing is launched yet" in each for each in said) == 2


def test_a_run_whose_launch_cannot_be_started_can_be_stopped(tmp_path: Path) -> None:
    """Its newest checkpoint is what it resumes from."""
    launcher, said = ShellLauncher(tmp_path, away=10**6), list[str]()
    supervisor = Supervisor(launcher, tmp_path / "run", say=said.append)
    thread = threading.Thread(target=lambda: said.append(f"status {supervisor.run()}"))
    thread.start()
    wait_for(lambda: "nothing is launched yet" in "".join(said), "that it cannot be started")
    supervisor.ask_to_stop()
    thread.join(60.0)
    assert said[-1] == f"status {EXIT_STOPPED}"
    assert launcher.count == 0
