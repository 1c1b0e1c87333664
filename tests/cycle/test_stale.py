"""A live daemon and a stale proof: the run says what it trains on, and goes nowhere unproven."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.builders.cycles import CATALOGUE, report, store_day, turn
from tests.builders.runs import T0, register
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.policies.decision import PolicySettings
from wattmesh.policies.staleness import stale_points
from wattmesh.reconfig.fingerprint import Fingerprint

PROVEN = Fingerprint(torch="2.11.0", code_digest="ab12", gpu_models="4 x H200")


def _live(
    journal: Journal,
    present: tuple[str, ...],
    *,
    proven: Fingerprint | None = PROVEN,
    at: datetime | None = T0 - timedelta(days=80),
) -> Journal:
    """One live run before two dirty hours, whose points were proven at `at`."""
    points = tuple(replace(each, fingerprint=proven, validated_at=at) for each in CATALOGUE.points)
    plan = RunPlan(catalogue=replace(CATALOGUE, points=points), deadline=T0 + timedelta(hours=5))
    register(
        journal,
        plan=plan,
        tokens_total=10_000_000,
        boundary_every=20,
        host="",
        capabilities=_capabilities(present),
    )
    report(journal, step=1)
    store_day(journal, high_first=True)
    return journal


def _capabilities(words: tuple[str, ...]) -> tuple[str, ...]:
    """What a launch can do, and what it computes with."""
    return ("in_place", "parking", *words)


def _reason(journal: Journal) -> str:
    return journal.decisions.list("r")[0].reason


@pytest.mark.parametrize(
    "present",
    [
        PROVEN.to_capabilities(),
        (),
        # A newer hook may say more, and anything may say nonsense: neither is a difference.
        (
            *PROVEN.to_capabilities(),
            "computes with firmware: 7",
            "computes with vbios: ",
            "computes with",
        ),
    ],
)
def test_a_fresh_proof_of_what_the_run_trains_on_is_switched_to(
    journal: Journal, present: tuple[str, ...]
) -> None:
    """What holds: the grid is dirty now and clean later, so the smaller layout is ordered."""
    turn(_live(journal, present))
    switch = journal.switches.open("r")
    assert switch is not None
    assert switch.to_point == "B"


def test_a_proof_on_another_torch_is_not_and_the_reason_says_what_to_run(journal: Journal) -> None:
    """The sabotaged twin: `why` names both versions, and the command."""
    turn(_live(journal, replace(PROVEN, torch="2.13.0").to_capabilities()))
    assert journal.switches.open("r") is None
    assert "B is stale: it was proven with torch 2.11.0, now 2.13.0" in _reason(journal)
    assert "`wattmesh configs validate`" in _reason(journal)


def test_a_proof_that_was_too_old_when_the_run_began_is_not(journal: Journal) -> None:
    """By the setting, in the reason with both figures."""
    turn(
        _live(journal, PROVEN.to_capabilities()),
        policy=PolicySettings(dwell_s=600.0, proof_days=79),
    )
    assert journal.switches.open("r") is None
    assert "proven 80 days before the run began, and proofs hold for 79" in _reason(journal)


def test_a_point_does_not_grow_stale_while_a_run_trains(journal: Journal) -> None:
    """Fresh when the run began: it stays on the menu, or a slow run could not speed up again."""
    _live(journal, PROVEN.to_capabilities(), at=T0 - timedelta(days=89, hours=23))
    at = T0 + timedelta(hours=3)
    report(journal, step=2, at=at)
    turn(journal, at=at)
    row = journal.runs.find("r", at)
    assert row is not None
    assert row.catalogue is not None
    proof_days = PolicySettings().proof_days
    points, ran = row.catalogue, row.computes_with
    assert stale_points(points, row.registered_at, proof_days, ran) == {}
    assert set(stale_points(points, at, proof_days, ran)) == {"A", "B"}
    assert "stale" not in _reason(journal)


def test_what_the_next_launch_says_counts(journal: Journal) -> None:
    """A requeued run with other code is held to that; with the old code the proof holds again."""
    _live(journal, PROVEN.to_capabilities())
    for attempt, code, ordered in ((2, "cd34", False), (3, "ab12", True)):
        register(
            journal,
            now=T0 + timedelta(seconds=attempt),
            incarnation=f"i{attempt}",
            attempt=attempt,
            supersedes=f"i{attempt - 1}",
            tokens_total=10_000_000,
            boundary_every=20,
            host="",
            capabilities=_capabilities(replace(PROVEN, code_digest=code).to_capabilities()),
        )
        report(journal, step=5 * attempt, attempt=attempt)
        turn(journal, at=T0 + timedelta(seconds=5 * attempt))
        assert (journal.switches.open("r") is not None) == ordered
        assert ("the job's code" in _reason(journal)) != ordered
