"""A fixed number of hostile deliveries at the agents' door; `make fuzz` has no end."""

from benchmarks.hostile import agents
from benchmarks.hostile.__main__ import SEED, report_of
from wattmesh.controller import fleet
from wattmesh.errors import InputInvalid
from wattmesh.telemetry.delivery import Report

COUNT = 300


def test_typed_but_extreme_deliveries_break_nothing_and_cost_others_nothing() -> None:
    """A real daemon: no crash, no loop that stands still, no honest delivery refused."""
    tried = agents.measure(SEED, COUNT)
    assert tried.crashes == ()
    assert (tried.inputs, tried.others_refused) == (COUNT, 0)
    missed = [goal.name for goal in report_of([tried], SEED).goals if not goal.ok]
    assert missed == []


def test_the_door_as_it_was_let_them_in() -> None:
    """The same deliveries, read without the ranges: they end the sampler's turn."""
    broken = 0
    for number in range(COUNT):
        _, _, body = agents.hostile(f"{SEED}:{number}")
        try:
            report = Report.from_json(body)
            for name, facts in report.devices.items():
                fleet._reading(name, facts)
        except InputInvalid:
            continue
        except Exception:
            broken += 1
    assert broken > 0
    assert agents.hostile("15:3") != agents.hostile("15:4")
