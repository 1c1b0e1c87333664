"""A proof that is too old, or of something else, makes a point stale; what is unknown does not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.builders.observations import observation, run
from wattmesh.policies.menu import menu, why_not
from wattmesh.policies.staleness import stale, stale_points
from wattmesh.reconfig.catalogue import Catalogue, Equivalence, Evidence, OperatingPoint
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.layout import Layout

NOW = datetime(2026, 11, 1, tzinfo=UTC)
POINT = OperatingPoint(
    id="B",
    layout=Layout(),
    gpus=1,
    tokens_per_s=1.0,
    power_w=1.0,
    equivalence=Equivalence.NUMERICAL,
    evidence=Evidence.VALIDATED,
    fingerprint=Fingerprint(torch="2.13.0", driver="580"),
    validated_at=NOW - timedelta(days=80),
)


def test_an_old_proof_is_stale_and_one_without_a_date_is_not() -> None:
    """The age is a setting; 0 is forever."""
    assert stale(POINT, NOW, 90, Fingerprint()) == ""
    assert "80 days ago, and proofs hold for 30" in stale(POINT, NOW, 30, Fingerprint())
    assert stale(POINT, NOW, 0, Fingerprint()) == ""
    assert stale(replace(POINT, validated_at=None), NOW, 30, Fingerprint()) == ""
    assert stale(replace(POINT, evidence=Evidence.MEASURED), NOW, 30, Fingerprint()) == ""


@pytest.mark.parametrize(
    "edited",
    [
        {"layout": Layout(tp=2)},
        {"layout": Layout(micro_batch=2)},
        {"gpus": 2},
        {"clock_mhz": 1200},
        {"equivalence": Equivalence.EXACT},
        {"tolerance": 1e9},
    ],
)
def test_a_point_that_was_edited_after_its_proof_is_stale(edited: dict[str, Any]) -> None:
    """As a block that was copied for another layout; its speed and watts may be measured anew."""
    proven = replace(POINT, proven_as=POINT.claim)
    assert stale(replace(proven, tokens_per_s=2.0, power_w=3.0), NOW, 90, Fingerprint()) == ""
    assert "was edited after it was proven" in stale(
        replace(proven, **edited), NOW, 90, Fingerprint()
    )


def test_a_proof_from_the_future_is_stale() -> None:
    """Its age is not known, however long a proof may hold; a clock an hour ahead makes none."""
    later = replace(POINT, validated_at=datetime(2999, 1, 1, tzinfo=UTC))
    for age_days in (90, 0):
        assert "dated 2999-01-01, in the future" in stale(later, NOW, age_days, Fingerprint())
    ahead = replace(POINT, validated_at=NOW + timedelta(hours=1))
    assert stale(ahead, NOW, 90, Fingerprint()) == ""


def test_a_proof_of_something_else_is_stale_and_an_unknown_part_is_not() -> None:
    """The clause names both sides."""
    told = stale(POINT, NOW, 90, Fingerprint(torch="2.14.0"))
    assert told == "B is stale: it was proven with torch 2.13.0, now 2.14.0"
    assert stale(POINT, NOW, 90, Fingerprint(torch="2.13.0", nccl="2.27")) == ""
    assert stale(replace(POINT, fingerprint=None), NOW, 90, Fingerprint(torch="2.14.0")) == ""


def test_a_stale_point_is_on_no_menu_and_the_reason_says_what_to_run() -> None:
    """The same run with the same point fresh may be switched to it."""
    catalogue = Catalogue(job="j", tokens_total=1, reference="B", points=(POINT,))
    seen = run(catalogue=catalogue, current=POINT, layout=POINT.layout)
    policy = observation().policy
    found = stale_points(catalogue, NOW, 30, Fingerprint())
    assert [each.id for each in menu(seen, policy)] == ["B"]
    assert menu(replace(seen, stale=found), policy) == ()
    why = why_not(POINT, replace(seen, stale=found), policy)
    assert why.endswith("prove it anew with `wattmesh configs validate`")
