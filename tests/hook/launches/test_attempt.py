"""Who a launch is: identity, rising attempt numbers, and one live incarnation per run."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from wattmesh.errors import Refused
from wattmesh.reconfig.launch import attempt
from wattmesh.reconfig.launch.attempt import AttemptLock, highest_attempt
from wattmesh.reconfig.launch.folder import RunFolder, read_json, write_json


def hold(path: Path, line: Connection) -> None:
    """Claim the run in another process, and hold it until told."""
    claim = AttemptLock(RunFolder(path), "held")
    line.send(claim.identity.attempt)
    line.recv()


def test_attempts_rise_and_name_the_launch_before(tmp_path: Path) -> None:
    """Each launch has the same run, a higher number, and knows whom it supersedes."""
    folder = RunFolder(tmp_path)
    first = AttemptLock(folder, "r")
    first.close()
    second = AttemptLock(folder, "r")
    second.close()
    assert first.identity.attempt == 1
    assert second.identity.attempt == 2
    assert second.identity.run == first.identity.run
    assert first.identity.supersedes is None
    assert second.identity.supersedes == first.identity.incarnation


def test_a_second_live_incarnation_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names the holder's attempt, host and pid; when it is gone, the run is free."""
    monkeypatch.setattr(attempt, "LOCK_PATIENCE_S", 0.2)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path, there))
    process.start()
    assert here.recv() == 1
    with pytest.raises(Refused, match=rf"attempt 1 on host .*, pid {process.pid} holds it"):
        AttemptLock(RunFolder(tmp_path), "r")
    process.kill()
    process.join()
    claim = AttemptLock(RunFolder(tmp_path), "r")
    assert claim.identity.attempt == 2
    with pytest.raises(Refused, match="only once"):
        AttemptLock(RunFolder(tmp_path), "r")
    claim.close()


def test_a_damaged_identity_is_that_of_the_checkpoints(tmp_path: Path) -> None:
    """The run is not another one because a file of it was cut; without checkpoints it begins."""
    folder = RunFolder(tmp_path)
    AttemptLock(folder, "r").close()
    run = str((read_json(folder.run_file) or {})["run"])
    write_json(folder.checkpoint(20) / "trainer.json", {"header": {"run": run}})
    folder.checkpoint(30).mkdir()
    folder.run_file.write_bytes(b"{")
    second = AttemptLock(folder, "r")
    second.close()
    assert second.identity.run == run == (read_json(folder.run_file) or {})["run"]
    folder.run_file.unlink()  # a copy of checkpoints is another run, which is told elsewhere
    third = AttemptLock(folder, "r")
    third.close()
    assert third.identity.run != run


def test_an_identity_that_cannot_be_read_is_not_written_anew(tmp_path: Path) -> None:
    """The launch fails, and the next one may find it."""
    folder = RunFolder(tmp_path)
    folder.run_file.mkdir()
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            AttemptLock(folder, "r")
    folder.run_file.rmdir()
    AttemptLock(folder, "r").close()


def test_a_number_taken_by_another_is_passed_over(tmp_path: Path) -> None:
    """A number is claimed by creating its file; where one exists, the next is taken."""
    folder = RunFolder(tmp_path)
    claim = AttemptLock(folder, "r")
    (folder.attempts / "0002").write_text("{}")
    assert claim.raise_above(0) == 3
    assert claim.raise_above(40) == 41
    assert highest_attempt(folder) == 41
    claim.close()
