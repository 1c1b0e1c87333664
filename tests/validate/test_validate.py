"""A real bf16 FSDP2 job is proven where it trains alike, and never where it was made wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.validate import trained
from tests.validate.catalogues import catalogue
from tests.validate.forked import Forked
from wattmesh.controller.cli.configs.validate_screen import proof_lines, validation_json
from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.validate.rules import unstampable
from wattmesh.controller.validate.validate import Validation, Validator
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Evidence
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.layout import Layout

POINTS = (
    Candidate(id="A", layout=Layout(dp_shard=2)),
    Candidate(id="B", layout=Layout()),
    Candidate(id="D", layout=Layout(micro_batch=trained.TWO_MICROBATCHES)),
    Candidate(id="E", layout=Layout(micro_batch=trained.NOT_FROM_ONE_RANK)),
)
HARMS = {
    "other_batch": trained.OTHER_BATCH,
    "moment_dropped": trained.MOMENT_DROPPED,
    "swapped_experts": trained.SWAPPED_EXPERTS,
    "damaged_rope": trained.DAMAGED_ROPE,
    "wrong_mean": trained.WRONG_MEAN,
    "other_data": trained.OTHER_DATA,
    "scaled_gradient": trained.SCALED_GRADIENT,
    "late_nan": trained.LATE_NAN,
}
HARMED = tuple(
    Candidate(id=name, layout=Layout(micro_batch=number)) for name, number in HARMS.items()
)
JOB = ProfileJob(
    name="trained",
    directory=Path().resolve(),
    command=("-m", "tests.validate.trained"),
    processes=2,
    reference="A",
    points=(*POINTS, *HARMED),
    every=4,
    digest="d",
)


@pytest.fixture(scope="module")
def validated(
    tmp_path_factory: pytest.TempPathFactory, forked: Forked
) -> tuple[Validation, Validator]:
    """The job with every point, right and wrong, validated once."""
    here = tmp_path_factory.mktemp("validated")
    validator = Validator(
        job=JOB,
        file=catalogue(here / "c.toml", JOB),
        folder=here / "work",
        orders=(2,),
        launcher=forked,
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
    assert told["D"] == ("validated", "numerical"), validated[0].progress.point("D")
    point = found.point("B")
    assert point.validated_at is not None
    assert "@" in point.validated_by
    assert point.tolerance is not None
    assert point.fingerprint is not None
    assert point.fingerprint.code_digest
    assert point.proven_as == point.claim


@pytest.mark.parametrize("harm", HARMS)
def test_a_point_that_trains_something_else_is_never_validated(
    harm: str, validated: tuple[Validation, Validator]
) -> None:
    """Sabotaged twins: probe and state are right, gradient or losses are not."""
    found, validator = validated
    assert catalogue_file.load(validator.file).point(harm).evidence is Evidence.MEASURED
    proof = found.progress.point(harm)
    assert proof is not None
    failed = {each.check for each in proof.checks if not each.ok}
    # A gradient is caught before moments are used, and a loss is lost after both.
    assert {"moment_dropped": "V12", "late_nan": "V2"}.get(harm, "V7") in failed
    assert "V1" not in failed
    assert harm in found.unstamped


def test_every_switch_between_two_proven_points_is_made_and_a_faulty_one_costs_its_point(
    validated: tuple[Validation, Validator],
) -> None:
    """E trains alike and cannot be reached from B alone: the daemon would not know that."""
    found, validator = validated
    made = {(each.origin, each.target): each for each in found.progress.pairs}
    assert set(made) == {(one, other) for one in "BDE" for other in "BDE" if one != other}
    assert [pair for pair, each in made.items() if not each.ok] == [("B", "E")]
    assert "the caches of one rank are in the way" in made["B", "E"].sentence
    proof = found.progress.point("E")
    assert proof is not None
    assert proof.proven
    assert catalogue_file.load(validator.file).point("E").evidence is Evidence.MEASURED
    assert "the switch from B to E failed" in found.unstamped["E"]
    assert not {"A", "B", "D"} & set(found.unstamped)
    shown = "\n".join(str(each) for each in proof_lines(found, 200))
    assert "5 of 6 switches between two points keep every bit" in shown
    assert "E may not be switched to: it trains alike, but the switch from B to E failed" in shown
    told = validation_json(found, "c.toml")["pairs"]
    assert {"origin": "B", "target": "E", "ok": False} in [
        {key: each[key] for key in ("origin", "target", "ok")} for each in told
    ]


def test_what_was_proven_is_not_run_again_and_a_switch_that_failed_is(
    validated: tuple[Validation, Validator], forked: Forked
) -> None:
    """A second call with the same folder starts the tour of what is left, and nothing else."""
    _, first = validated
    before = forked.started
    again = Validator(
        job=JOB, file=first.file, folder=first.folder, orders=(2,), launcher=forked
    ).run(["B"])
    assert forked.started == before + 1
    assert again.catalogue.point("B").evidence is Evidence.VALIDATED
    assert again.catalogue.point("E").evidence is Evidence.MEASURED


def test_a_job_in_bf16_by_autocast_is_numerical(tmp_path: Path, forked: Forked) -> None:
    """Parameters and gradients are fp32 then; the limit follows the products."""
    job = replace(JOB, points=POINTS[:2])
    found = Validator(
        job=job,
        file=catalogue(tmp_path / "c.toml", job),
        folder=tmp_path / "work",
        orders=(2,),
        launcher=forked.with_variables(TRAINED_PRECISION="autocast"),
    ).run()
    proof = found.progress.point("B")
    assert proof is not None
    assert (proof.equivalence, found.unstamped) == ("numerical", {})
    assert {each.check for each in proof.checks} == {"V1", "V2", "V7", "V12"}


def test_a_catalogue_that_contradicts_the_job_starts_nothing(tmp_path: Path) -> None:
    """The sentence names the point and both layouts."""
    path = catalogue(tmp_path / "c.toml", JOB)
    path.write_text(path.read_text().replace('name = "trained"', 'name = "other"'))
    with pytest.raises(InputInvalid, match=r"job\.name is 'trained', the catalogue's is 'other'"):
        Validator(job=JOB, file=path, folder=tmp_path / "work").run()
    assert not (tmp_path / "work").exists()


def test_only_measured_points_of_this_machine_are_stamped(tmp_path: Path) -> None:
    """Predicted points, and those that were measured elsewhere or nobody knows where, stay so."""
    found = catalogue_file.load(catalogue(tmp_path / "c.toml", JOB, Evidence.PREDICTED))
    assert "predicted, not measured" in unstampable(found, "B", Fingerprint())
    assert "not in the catalogue" in unstampable(found, "Z", Fingerprint())
    typed = replace(found.point("B"), evidence=Evidence.MEASURED, fingerprint=None)
    found = replace(found, points=(found.point("A"), typed))
    assert "it has no fingerprint" in unstampable(found, "B", Fingerprint(torch="2.13.0"))
    known = replace(typed, fingerprint=Fingerprint(torch="2.13.0"))
    found = replace(found, points=(found.point("A"), known))
    assert unstampable(found, "B", Fingerprint(torch="2.13.0")) == ""
