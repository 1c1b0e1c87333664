"""A validation's folder: held by one, not writable, and ended before anything was found."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.validate.catalogues import catalogue
from wattmesh import durable
from wattmesh.controller.process.children import ChildFailed
from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.validate.results import CheckRow, PointProof, ValidationProgress
from wattmesh.controller.validate.validate import Validator
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Evidence
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

    def meanwhile(_: str) -> None:
        found = catalogue_file.load(path)
        proven = replace(found.point("B"), evidence=Evidence.VALIDATED)
        catalogue_file.save(replace(found, points=(found.point("A"), proven)), path)

    launcher = Dead()
    Validator(job=JOB, file=path, folder=tmp_path / "v", launcher=launcher, tell=meanwhile).run()
    found = catalogue_file.load(path)
    assert launcher.started == 0
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
