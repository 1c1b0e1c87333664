"""The energy benchmark judges as it says: its truth is exact, and a lying ledger is caught."""

from pathlib import Path

import pytest

from benchmarks.energy.__main__ import violated
from benchmarks.energy.worlds import QUIET_W, Anchor, World, anchors, make, worlds

TRUTH_J = 20_000.0


def test_a_right_ledger_passes() -> None:
    """Exact; and with a dark time whose bound holds the rest."""
    assert not violated((20_000.0, 0.0, 0.0), TRUTH_J, 0.0)
    assert not violated((12_000.0, 20.0, 14_000.0), TRUTH_J, 20.4)


@pytest.mark.parametrize(
    ("booked", "expected_s"),
    [
        ((27_000.0, 0.0, 0.0), 0.0),  # the outage counted twice
        ((13_000.0, 0.0, 0.0), 0.0),  # the outage lost without a word
        ((13_000.0, 20.0, 5_000.0), 20.0),  # a bound that does not hold
        ((12_000.0, 25.0, 17_500.0), 20.0),  # dark time that was none
        ((-1.0, 30.0, 21_000.0), 30.0),
    ],
)
def test_a_wrong_ledger_is_caught(booked: tuple[float, float, float], expected_s: float) -> None:
    """Sabotaged twins: double, lost, unbounded, too dark, negative."""
    assert violated(booked, TRUTH_J, expected_s)


def test_a_quiet_gpus_energy_is_known_at_any_moment(tmp_path: Path) -> None:
    """Two looks agree on each other's moments to a hundredth of a joule."""
    world = World(name="quiet", cases=worlds()[0].cases[:1])
    fake = make(world, tmp_path)
    try:
        early, late = (anchors(world, fake)[fake.gpu(0).uuid] for _ in range(2))
    finally:
        fake.close()
    assert early.energy_at(late.at_s) == pytest.approx(late.energy_j, abs=0.01 * QUIET_W)
    assert Anchor(at_s=1.0, energy_j=5.0).energy_at(2.0) == 5.0 + QUIET_W


def test_every_fault_of_the_issue_is_a_case() -> None:
    """What is to be shown is played: and of each goal there is a case."""
    cases = [case for world in worlds() for case in world.cases]
    names = " | ".join(case.name for case in cases)
    for fault in ("constant", "steps", "part-time", "counter reset", "lost for 30 s", "killed"):
        assert fault in names
    assert {case.goal for case in cases} == {"exact", "part-time", "bounded", "integrated"}
