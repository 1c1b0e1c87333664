"""A catalogue in the journal: comes back as it was, older ones too."""

import json
from dataclasses import replace
from datetime import UTC, datetime

from tests.builders.observations import PAIR
from wattmesh.controller.journal.runs.frozen_catalogue import from_text, to_stored
from wattmesh.reconfig.catalogue import PairCost, SwitchCost
from wattmesh.reconfig.fingerprint import Fingerprint


def test_costs_of_pairs_come_back() -> None:
    """Whatever a switch costs, between which points."""
    pair = PairCost(origin="A", target="paused", seconds=3.0, energy_j=40.0)
    stored = replace(PAIR, switch=SwitchCost(reacquire_s=60.0, pairs=(pair,)))
    assert from_text(to_stored(stored)) == stored


def test_what_was_proven_when_and_on_what_comes_back() -> None:
    """A validated point is as stale in the journal as it is in its file."""
    proven = replace(
        PAIR.points[0],
        fingerprint=Fingerprint(torch="2.11.0", code_digest="ab"),
        validated_at=datetime(2026, 11, 23, 21, 40, tzinfo=UTC),
        validated_by="ann@head",
        tolerance=2e-4,
    )
    stored = replace(PAIR, points=(proven, *PAIR.points[1:]))
    assert from_text(to_stored(stored)) == stored


def test_a_catalogue_from_before_there_were_pairs_is_read() -> None:
    """A run registered by an earlier version keeps its catalogue."""
    old = json.loads(to_stored(PAIR))
    del old["switch"]["pairs"], old["switch"]["reacquire_s"]
    assert from_text(json.dumps(old)) == PAIR
