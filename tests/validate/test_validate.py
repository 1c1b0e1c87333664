"""A real bf16 FSDP2 job is proven where it trains alike, and never where it was made wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.validate.trained import OTHER_BATCH
from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.validate.validate import Validation, Validator
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, Evidence, OperatingPoint
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.layout import Layout

POINTS = (
    Candidate(id="A", layout=Layout(dp_shard=2)),
    Candidate(id="B", layout=Layout()),
    Candidate(id="C", layout=Layout(micro_batch=OTHER_BATCH)),
)
JOB = ProfileJob(
    name="trained",
    directory=Path().resolve(),
    command=("-m", "tests.validate.trained"),
    processes=2,
    reference="A",
    points=POINTS,
    every=4,
    digest="d",
)


def catalogue(path: Path, evidence: Evidence = Evidence.MEASURED) -> Path:
    """Write the catalogue that profiling would have written."""
    points = tuple(
        OperatingPoint(
            id=each.id,
            layout=each.layout,
            gpus=each.layout.world_size,
            tokens_per_s=1.0,
            power_w=1.0,
            evidence=evidence,
            fingerprint=Fingerprint(driver="none"),
        )
        for each in POINTS
    )
    catalogue_file.save(
        Catalogue(job="trained", tokens_total=1, reference="A", points=points), path
    )
    return path


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Validation, Validator]:
    """The job, validated once."""
    here = tmp_path_factory.mktemp("validated")
    validator = Validator(
        job=JOB, file=catalogue(here / "c.toml"), folder=here / "work", orders=(2,)
    )
    return validator.run(), validator


def test_an_ordinary_bf16_job_is_exact_at_its_reference_and_numerical_elsewhere(
    validated: tuple[Validation, Validator],
) -> None:
    """The proof stands in the file, with who, when, on what and to which tolerance."""
    found = catalogue_file.load(validated[1].file)
    told = {each.id: (each.evidence.value, each.equivalence.value) for each in found.points}
    assert told["A"] == ("validated", "exact")
    assert told["B"] == ("validated", "numerical"), validated[0].progress.point("B")
    point = found.point("B")
    assert point.validated_at is not None
    assert "@" in point.validated_by
    assert point.tolerance is not None
    assert point.fingerprint is not None
    assert point.fingerprint.code_digest


def test_a_point_that_trains_another_batch_is_never_validated(
    validated: tuple[Validation, Validator],
) -> None:
    """Sabotaged twin: its probe and its state are right, its gradient is not."""
    found, validator = validated
    assert catalogue_file.load(validator.file).point("C").evidence is Evidence.MEASURED
    proof = found.progress.point("C")
    assert proof is not None
    assert "V7" in {each.check for each in proof.checks if not each.ok}
    assert "C" in found.unstamped


def test_what_was_proven_is_not_run_again(validated: tuple[Validation, Validator]) -> None:
    """A second call with the same folder starts nothing for a proven point."""
    _, first = validated
    again = Validator(job=JOB, file=first.file, folder=first.folder, orders=(2,)).run(["B"])
    assert again.wall_s < validated[0].wall_s
    assert again.catalogue.point("B").evidence is Evidence.VALIDATED


def test_a_catalogue_that_contradicts_the_job_starts_nothing(tmp_path: Path) -> None:
    """The sentence names the point and both layouts."""
    path = catalogue(tmp_path / "c.toml")
    path.write_text(path.read_text().replace('name = "trained"', 'name = "other"'))
    with pytest.raises(InputInvalid, match=r"job\.name is 'trained', the catalogue's is 'other'"):
        Validator(job=JOB, file=path, folder=tmp_path / "work").run()
    assert not (tmp_path / "work").exists()


def test_only_measured_points_of_this_machine_are_stamped(tmp_path: Path) -> None:
    """Predicted points, and those that were measured elsewhere or nobody knows where, stay so."""
    from wattmesh.controller.validate.rules import unstampable  # noqa: PLC0415

    found = catalogue_file.load(catalogue(tmp_path / "c.toml", Evidence.PREDICTED))
    assert "predicted, not measured" in unstampable(found, "B", Fingerprint())
    assert "not in the catalogue" in unstampable(found, "Z", Fingerprint())
    typed = replace(found.point("B"), evidence=Evidence.MEASURED, fingerprint=None)
    found = replace(found, points=(found.point("A"), typed))
    assert "it has no fingerprint" in unstampable(found, "B", Fingerprint(torch="2.13.0"))
    known = replace(typed, fingerprint=Fingerprint(torch="2.13.0"))
    found = replace(found, points=(found.point("A"), known))
    assert unstampable(found, "B", Fingerprint(torch="2.13.0")) == ""
