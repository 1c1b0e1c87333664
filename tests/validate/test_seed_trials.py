"""A real job with dropout is statistical over seeds, and a twin that loses its moments is not."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.builders.observations import observation, run
from tests.validate import trained
from tests.validate.catalogues import catalogue
from tests.validate.forked import Forked
from tests.validate.test_validate import JOB
from wattmesh.controller.profile.job import Candidate
from wattmesh.controller.validate.validate import Validation, Validator
from wattmesh.errors import InputInvalid
from wattmesh.policies.decision import Action, PolicySettings
from wattmesh.policies.rules.decide import decide
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Equivalence, Evidence
from wattmesh.reconfig.layout import Layout

SEEDS = 5
POINTS = (
    Candidate(id="A", layout=Layout()),
    Candidate(id="B", layout=Layout(dp_shard=2)),
    Candidate(id="lost", layout=Layout(dp_shard=2, micro_batch=trained.MOMENT_DROPPED)),
)
# Fifty steps at the point: one interval is long enough for losses, and short for moments.
WITH_DROPOUT = replace(JOB, points=POINTS, every=25)
# Most steps are the reference's: they are trained by one rank, while the other waits.
VARIABLES = {"TRAINED_DROPOUT": "0.1", "TRAINED_RANKS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """A validation without seeds, one in which a seed crashes, and one that goes on after it.

    `said`: what the last one told. `launches`: how many each of them started.
    """

    file: Path
    without: Validation
    crashed: Validation
    whole: Validation
    said: list[str]
    launches: list[int]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Trials:
    """The three, in one folder."""
    here = tmp_path_factory.mktemp("trials")
    file = catalogue(here / "c.toml", WITH_DROPOUT)
    said: list[str] = []
    launches = []

    def validate(seeds: int, only: tuple[str, ...] = (), **variables: str) -> Validation:
        before = forked.started
        said.clear()
        found = Validator(
            job=WITH_DROPOUT,
            file=file,
            folder=here / "work",
            orders=(2,),
            launcher=forked.with_variables(**VARIABLES, **variables),
            seeds=seeds,
            tell=said.append,
        ).run(only)
        launches.append(forked.started - before)
        return found

    return Trials(
        without=validate(0, ("B",)),
        crashed=validate(SEEDS, ("B",), TRAINED_CRASH_IN="seed-2-point-B"),
        whole=validate(SEEDS),
        file=file,
        said=said,
        launches=launches,
    )


def test_without_seeds_a_job_with_dropout_is_told_what_they_would_cost(trials: Trials) -> None:
    """It stays unproven, and names the layer, the option and the time."""
    proof = trials.without.progress.point("B")
    assert proof is not None
    assert not proof.proven
    assert "dropout in drop" in proof.next_step
    assert "--seeds 8: 14 launches, about " in proof.next_step


def test_a_seed_that_crashes_proves_nothing_and_its_sentence_is_told(trials: Trials) -> None:
    """No other seed takes its place."""
    proof = trials.crashed.progress.point("B")
    assert proof is not None
    assert not proof.proven
    assert "of its seeds not all were trained" in proof.because
    assert "a seed with bad luck" in proof.because
    assert catalogue_file.load(trials.file).point("lost").evidence is Evidence.MEASURED


def test_what_seeds_were_trained_is_kept(trials: Trials) -> None:
    """The third call trains B again, its last three seeds, and what belongs to the twin.

    A twin that trains on for longer, until it takes its order, has its reference trained further.
    """
    first, second, third = trials.launches
    assert first == 4
    # B, the first seed's two launches, and the one that crashed.
    assert second == 4
    references = [line for line in trials.said if line.endswith("-reference")]
    assert {f"training seed-{seed}-reference" for seed in (2, 3, 4)} <= set(references)
    assert third - len(references) == (1 + 3) + (1 + SEEDS - 1)


def test_a_point_with_dropout_is_statistical_over_seeds(trials: Trials) -> None:
    """Its state is kept to the bit; gradient, state and losses are alike on the mean."""
    proof = trials.whole.progress.point("B")
    assert proof is not None
    assert proof.proven, proof
    point = catalogue_file.load(trials.file).point("B")
    assert (point.evidence, point.equivalence) == (Evidence.VALIDATED, Equivalence.STATISTICAL)
    assert {each.check for each in proof.checks} == {"V1", "V8"}
    assert {each.name for each in proof.checks if each.check == "V8"} == {
        "mean gradient, p",
        "mean change of the parameters, p",
        "mean optimizer slot exp_avg, p",
        "mean optimizer slot exp_avg_sq, p",
        "mean optimizer slot step, p",
        "mean loss, p",
    }
    assert any(
        "B draws random numbers; 5 seeds: 6 launches, about " in each for each in trials.said
    )


def test_a_twin_that_loses_its_moments_is_not_statistical(trials: Trials) -> None:
    """Its gradient and its probe are right; it is told apart, and the seeds are enough."""
    proof = trials.whole.progress.point("lost")
    assert proof is not None
    assert not proof.proven
    failed = {each.name for each in proof.checks if not each.ok}
    assert "mean optimizer slot exp_avg_sq, p" in failed
    assert "the layout trains something else on the mean" in proof.next_step
    assert catalogue_file.load(trials.file).point("lost").evidence is Evidence.MEASURED


def test_the_statistical_point_is_switched_to_only_where_its_class_is_allowed(
    trials: Trials,
) -> None:
    """From what the command wrote to the daemon's decision."""
    found = catalogue_file.load(trials.file)
    asked = run(catalogue=found, ordered_point="B", world_size=2, gpus_held=2, deadline=None)
    allowed = PolicySettings(equivalence=tuple(Equivalence))
    (decision,) = decide(observation(asked, policy=allowed))
    assert (decision.action, decision.target) == (Action.SWITCH, "B")
    (decision,) = decide(observation(asked))
    assert decision.action is Action.HOLD
    assert "trains with equivalence statistical" in decision.reason


@pytest.mark.parametrize("seeds", [1, 4, 65])
def test_a_number_of_seeds_that_cannot_prove_anything_starts_nothing(
    seeds: int, tmp_path: Path
) -> None:
    """Fewer than five, or more than anybody can want."""
    file = catalogue(tmp_path / "c.toml", WITH_DROPOUT)
    with pytest.raises(InputInvalid, match=rf"{seeds} seeds .* 5 to 64"):
        Validator(job=WITH_DROPOUT, file=file, folder=tmp_path / "work", seeds=seeds).run()
    assert not (tmp_path / "work").exists()
