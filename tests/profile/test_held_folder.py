"""A profile's folder and file: held by one, full, read-only; and Ctrl-C in the middle."""

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.profile.acting import Act
from tests.profile.test_measuring import ACT, JOB, REPOSITORY, command, profiled
from wattmesh import durable
from wattmesh.controller.process.children import descendants, wait_for
from wattmesh.controller.profile.results import PROGRESS, load
from wattmesh.errors import InputInvalid

__all__ = ["command"]


def test_two_profiles_never_share_a_folder(tmp_path: Path) -> None:
    """The second is told whose it is, and leaves everything alone; the kernel gives it back."""
    place = tmp_path / "p"
    with (
        durable.hold(place),
        pytest.raises(InputInvalid, match=rf"in use by the profile of process {os.getpid()}"),
    ):
        profiled(place)
    assert not place.exists()
    assert profiled(place, job=replace(JOB, warm_switches=False)).progress.launches == 1


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    """Also where its parent is no folder."""
    (tmp_path / "file").touch()
    with pytest.raises(InputInvalid, match=r"cannot go on: .*what was measured before is kept"):
        profiled(tmp_path / "file" / "p")


def test_steps_that_are_no_longer_logged_end_the_launch(tmp_path: Path) -> None:
    """The job reports on, as on a full disk: the point has the reason, the others their numbers."""
    place = tmp_path / "p"

    class Gone(list[str]):
        def append(self, text: str) -> None:
            if text == "B (1 rank) trains":
                log = place / "launch-1" / "steps.jsonl"
                log.rename(log.with_name("gone"))
                log.symlink_to("/dev/null")

    job = replace(JOB, warm_switches=False, silence_limit_s=2.0)
    found = profiled(place, job=job, told=Gone())
    assert [each.id for each in found.catalogue.points] == ["A"]
    assert "has not grown for" in found.progress.refused["B"]


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, command: Callable[..., list[str]]) -> None:
    """It ends with 130, says where it goes on, and leaves no process."""
    slow: Act = replace(ACT, step_s={**ACT.step_s, "1 rank": 10.0})
    place = tmp_path / "c.profile"
    words = [each for each in command(slow) if each != "--json"]

    def hears() -> None:
        """Undo what a shell did that started the tests in its background: they ignore Ctrl-C."""
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        words,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hears,  # noqa: PLW1509 - no other thread of pytest holds a lock
    )
    try:
        wait_for(
            lambda: (place / PROGRESS).exists() and '"id": "A"' in (place / PROGRESS).read_text(),
            limit_s=60,
            what="The first point",
        )
        below = descendants(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"stopped; what was measured is kept in {place}" in said
    assert below
    assert not [pid for pid, _ in below if _computes(pid)]
    kept = load(place, _digest(place))
    assert [each.id for each in kept.points] == ["A"]


def _computes(pid: int) -> bool:
    """Tell a process that lives from one that has ended, whether or not it was waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _digest(place: Path) -> str:
    text = (place / PROGRESS).read_text()
    return text.partition('"digest": "')[2].partition('"')[0]


def test_a_catalogue_that_cannot_be_written_is_refused_before_the_job_begins(
    tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    """The folder of `--out` is not there; nothing is started."""
    words = [*command(), "--out", str(tmp_path / "gone" / "c.toml")]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing can be written in" in done.stderr
    assert not list(tmp_path.glob("**/*.profile"))
