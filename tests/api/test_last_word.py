"""How a run ended that could not say it is told by its supervisor, and only by the one it has."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.api.conftest import Served
from tests.builders import messages
from wattmesh.reconfig.launch.attempt import AttemptLock
from wattmesh.reconfig.launch.folder import OUTCOME_VARIABLE, RunFolder, write_json
from wattmesh.reconfig.launcher.supervisor import (
    EXIT_GAVE_UP,
    EXIT_REFUSED,
    EXIT_STOPPED,
    Launch,
    Supervisor,
)


class Ending:
    """Launches that end at once; in band with `outcome`, or failed."""

    def __init__(self, outcome: str = "") -> None:
        """Say how."""
        self.outcome = outcome

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start one."""
        if self.outcome:
            told = {"outcome": self.outcome, "sentence": "SIGTERM to rank 0", "step": 7}
            Path(environment[OUTCOME_VARIABLE]).write_text(json.dumps(told))
        return Ended(subprocess.run(["false"], check=False).returncode)


class Ended:
    """A launch that is over."""

    def __init__(self, status: int) -> None:
        """Remember its status."""
        self._status = status

    def poll(self) -> int:
        """It has ended."""
        return self._status

    def end(self) -> None:
        """Nothing is left to be ended."""


@pytest.fixture
def folder(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run's folder, whose last launch the daemon has let in and heard at step 10."""
    monkeypatch.setenv("WATTMESH_URL", f"unix://{served.socket}")
    assert served.register().status == 200
    served.post(f"/v1/runs/{messages.RUN}/progress", messages.progress())
    found = RunFolder(tmp_path)
    write_json(found.run_file, {"run": messages.RUN, "name": "llama-8b"})
    write_json(found.registered_file, {"incarnation": "incarnation-1"})
    return found


def seen(served: Served) -> tuple[str, str, int]:
    """How it ended, its reason and step in the journal."""
    row = served.journal.runs.find(messages.RUN, served.clock.wall)
    assert row is not None
    return row.ending, row.finish_reason, row.step


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        ("", EXIT_GAVE_UP, "failed: gave up after 1 failed launches: no rank said why"),
        ("stopped", EXIT_STOPPED, "stopped: SIGTERM to rank 0"),
        ("refused", EXIT_REFUSED, "failed: SIGTERM to rank 0"),
    ],
)
def test_a_run_that_its_launcher_left_is_told_as_it_ended(
    served: Served, folder: RunFolder, outcome: str, status: int, reason: str
) -> None:
    """Never lost; what was trained stays as the daemon knows it."""
    supervisor = Supervisor(Ending(outcome), folder.path, max_restarts=0)
    assert supervisor.run() == status
    assert seen(served) == (reason.partition(":")[0], reason, 10)


def test_a_launch_that_lives_is_not_ended_by_another_s_supervisor(
    served: Served, folder: RunFolder
) -> None:
    """Neither one that holds the folder, nor one that the daemon has let in since."""
    said: list[str] = []
    claim = AttemptLock(folder, "llama-8b")
    supervisor = Supervisor(Ending(), folder.path, max_restarts=0, say=said.append)
    assert supervisor.run() == EXIT_GAVE_UP
    assert seen(served) == ("", "", 10)
    claim.close()
    write_json(folder.registered_file, {"incarnation": "incarnation-0"})
    assert supervisor.run() == EXIT_GAVE_UP
    assert seen(served) == ("", "", 10)
    assert ["another launch" in said[1], "superseded" in said[3]] == [True, True], said


def test_without_a_daemon_it_is_one_sentence(
    served: Served, folder: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And no error."""
    said: list[str] = []
    monkeypatch.setenv("WATTMESH_URL", f"unix://{tmp_path}/nobody")
    supervisor = Supervisor(Ending(), folder.path, max_restarts=0, say=said.append)
    assert supervisor.run() == EXIT_GAVE_UP
    assert "could not be told how the run ended: the daemon" in said[1]


def test_a_run_without_a_checkpoint_is_launched_from_the_beginning(folder: RunFolder) -> None:
    """Not from step -1."""
    said: list[str] = []
    assert Supervisor(Ending(), folder.path, max_restarts=1, say=said.append).run() == EXIT_GAVE_UP
    assert "launching again from the beginning in 0.5 s" in said[0], said
