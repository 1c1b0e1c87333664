"""Findings amount to the best class that they prove, and to no better one."""

import math

import pytest

from wattmesh.reconfig.catalogue import Equivalence
from wattmesh.reconfig.equivalence.verdict import Verdict, classify


def found(check: str, *, ok: bool = True) -> Verdict:
    """A finding of one check."""
    measured = 0.0 if ok else 1.0
    return Verdict(
        check=check, name="x", measured=measured, limit=0, sentence=f"{check} found {measured}"
    )


PROOF = tuple(found(check) for check in ("V1", "V2", "V3"))


def test_a_figure_that_is_no_number_is_not_ok() -> None:
    """Nan compares false with every limit, and so is never a proof."""
    for value in (math.nan, math.inf, 1e-9):
        assert not Verdict(check="V1", name="x", measured=value, limit=0, sentence="").ok


def test_the_proof_of_t1_makes_a_point_numerical() -> None:
    """State, trajectory and data hold: numerical, never exact."""
    assert classify(PROOF).equivalence is Equivalence.NUMERICAL


def test_the_reference_itself_is_exact() -> None:
    """The same layout needs the round trip only."""
    assert classify([found("V1")], same_layout=True).equivalence is Equivalence.EXACT
    assert classify([], same_layout=True).equivalence is Equivalence.NONE
    assert classify([found("V1", ok=False)], same_layout=True).equivalence is Equivalence.NONE


@pytest.mark.parametrize("missing", ["V1", "V2", "V3"])
def test_a_check_that_was_not_made_is_no_proof(missing: str) -> None:
    """Sabotaged twin: the same findings with one left out."""
    answer = classify([each for each in PROOF if each.check != missing])
    assert answer.equivalence is Equivalence.NONE
    assert missing in answer.because


def test_a_check_with_a_loose_limit_is_no_proof() -> None:
    """Sabotaged twin: losses that are equal to 1e-3 pass a limit of 1e-2, and prove nothing."""
    loose = Verdict(check="V2", name="x", measured=1e-3, limit=1e-2, sentence="")
    answer = classify([PROOF[0], loose, PROOF[2]])
    assert answer.equivalence is Equivalence.NONE
    assert "V2" in answer.because


@pytest.mark.parametrize(
    ("feature", "check"), [("dropout", "V4"), ("masked_loss", "V5"), ("experts", "V6")]
)
def test_what_a_model_has_must_be_checked(feature: str, check: str) -> None:
    """A model with experts is not numerical until its routes were compared; and so on."""
    assert classify(PROOF, features=[feature]).equivalence is Equivalence.NONE
    assert classify([*PROOF, found(check)], features=[feature]).equivalence is Equivalence.NUMERICAL


@pytest.mark.parametrize("check", ["V1", "V2", "V3", "V7"])
def test_one_failure_is_enough(check: str) -> None:
    """A check that fails once is not made good by passing elsewhere."""
    answer = classify([*PROOF, found(check, ok=False)])
    assert answer.equivalence is Equivalence.NONE
    assert check in answer.because


def test_a_lossy_trajectory_may_still_be_statistical() -> None:
    """Final losses over seeds are a proof of their own, if the state moves bitwise."""
    lossy = [found("V1"), found("V2", ok=False), found("V3"), found("V8")]
    assert classify(lossy).equivalence is Equivalence.STATISTICAL
    lossy[0] = found("V1", ok=False)
    assert classify(lossy).equivalence is Equivalence.NONE
