"""A validation's folder: held by one, not writable, and ended before anything was found."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.validate.catalogues import catalogue
from wattmesh import durable
from wattmesh.controller.process.children import ChildFailed
from wattmesh.controller.profile.job import Candidate, JobPower, PowerKind, ProfileJob
from wattmesh.controller.profile.kept import await_former
from wattmesh.controller.profile.profile import profile
from wattmesh.controller.profile.results import ProfileState
from wattmesh.controller.validate.results import CheckRow, PointProof, ValidationProgress
from wattmesh.controller.validate.validate import UNSAVED_SCHEDULE, Validator
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Evidence
from wattmesh.reconfig.equivalence.asked import JobFacts
from wattmesh.reconfig.layout import Layout

JOB = ProfileJob(
    name="trained",
    directory=Path().resolve(),
    command=("-c", "pass"),
    processes=1,
    reference="A",
    points=(Candidate(id="A", layout=Layout()),),
    digest="d",
)


class Dead:
    """A launcher whose job ends before its first step."""

    def __init__(self) -> None:
        """Count the launches."""
        self.started = 0

    def __call__(self, job: ProfileJob, command: object) -> list[str]:
        """Give words that end badly."""
        self.started += 1
        return ["false"]


def validator(tmp_path: Path, folder: Path, launcher: Dead) -> Validator:
    """Make a validation whose job never trains."""
    path = catalogue(tmp_path / "c.toml", JOB)
    return Validator(job=JOB, file=path, folder=folder, launcher=launcher)


def test_two_validations_never_share_a_folder(tmp_path: Path) -> None:
    """The second is told whose it is, starts nothing and leaves the folder alone."""
    place, launcher = tmp_path / "v", Dead()
    with (
        durable.hold(place),
        pytest.raises(InputInvalid, match=rf"in use by the validation of process {os.getpid()}"),
    ):
        validator(tmp_path, place, launcher).run()
    assert (place.exists(), launcher.started) == (False, 0)
    with pytest.raises(ChildFailed):
        validator(tmp_path, place, launcher).run()
    assert launcher.started == 1


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def rank_of_a_killed_call(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A rank that trains on in a launch's folder; it ends when its input does."""
    (folder / "run").mkdir(parents=True)
    words = [sys.executable, "-c", HOLD, str(folder / "run" / "attempt.lock")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def test_a_job_of_a_killed_call_that_does_not_end_is_a_sentence(tmp_path: Path) -> None:
    """It names the folder of that launch."""
    with (
        rank_of_a_killed_call(tmp_path / "launch-1"),
        pytest.raises(InputInvalid, match=r"earlier call started in .*launch-1 still runs"),
    ):
        await_former(tmp_path, lambda _: None, limit_s=0.1)


@pytest.mark.parametrize("what", ["validation", "profile"])
def test_nothing_is_started_beside_the_job_of_a_killed_call(tmp_path: Path, what: str) -> None:
    """It is waited for, and a sentence says so: it draws power, and writes where others read."""
    place, launcher = tmp_path / "v", Dead()
    place.mkdir()
    (ValidationProgress if what == "validation" else ProfileState)(digest="d").save(place)
    told: list[int] = []
    with rank_of_a_killed_call(place / "reference") as rank:

        def hear(said: str) -> None:
            if "of an earlier call to end" in said:
                told.append(launcher.started)
                rank.communicate()

        power = JobPower(kind=PowerKind.STATIC, watts=2.0, idle_watts=1.0)
        job = replace(JOB, power=power)
        path = catalogue(tmp_path / "c.toml", JOB)
        validator = Validator(job=JOB, file=path, folder=place, launcher=launcher, tell=hear)
        runs: dict[str, Callable[[], object]] = {
            "validation": validator.run,
            "profile": lambda: profile(job, place, hear, launcher=launcher),
        }
        with pytest.raises(ChildFailed):
            runs[what]()
    assert (told, launcher.started) == ([0], 1)


def test_what_another_validation_wrote_meanwhile_stays(tmp_path: Path) -> None:
    """Two may prove points of one catalogue, each in a folder of its own."""
    job = replace(JOB, points=(*JOB.points, Candidate(id="B", layout=Layout(dp_shard=2))))
    path = catalogue(tmp_path / "c.toml", job)
    row = CheckRow(check="V1", name="", measured=0, limit=0, ok=True, sentence="")
    proof = PointProof(id="A", layout="1 rank", equivalence="exact", because="V1", checks=(row,))
    launches = ("reference", "resumed", "control-2", "control-3")
    (tmp_path / "v").mkdir()
    ValidationProgress(
        digest="d", points=(replace(proof, at="2026-01-01T00:00:00+00:00"),), finished=launches
    ).save(tmp_path / "v")

    facts = tmp_path / "v" / "reference" / "facts.json"
    facts.parent.mkdir()
    facts.write_text(json.dumps(asdict(JobFacts(unsaved_schedule=True))))
    told = []

    def meanwhile(said: str) -> None:
        told.append(said)
        found = catalogue_file.load(path)
        proven = replace(found.point("B"), evidence=Evidence.VALIDATED)
        catalogue_file.save(replace(found, points=(found.point("A"), proven)), path)

    launcher = Dead()
    Validator(job=JOB, file=path, folder=tmp_path / "v", launcher=launcher, tell=meanwhile).run()
    found = catalogue_file.load(path)
    assert launcher.started == 0
    assert UNSAVED_SCHEDULE in told
    assert [each.evidence for each in found.points] == [Evidence.VALIDATED] * 2


def test_a_validation_that_ended_in_its_first_launch_goes_on_in_its_folder(tmp_path: Path) -> None:
    """The same command starts the reference again; it does not ask for a new folder."""
    place, launcher = tmp_path / "v", Dead()
    for count in (1, 2):
        with pytest.raises(ChildFailed):
            validator(tmp_path, place, launcher).run()
        assert launcher.started == count


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    """Also where its parent is no folder, or it is itself a file."""
    (tmp_path / "file").touch()
    with pytest.raises(InputInvalid, match=r"cannot go on: .*what was proven before is kept"):
        validator(tmp_path, tmp_path / "file" / "v", Dead()).run()
    with pytest.raises(InputInvalid, match="is a file and no folder"):
        validator(tmp_path, tmp_path / "file", Dead()).run()
