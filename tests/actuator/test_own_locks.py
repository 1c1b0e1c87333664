"""Clocks that a user locks on GPUs of that user's own: who may, beside whom, for how long."""

from dataclasses import replace

import pytest

from tests.actuator.worlds import NOW, SETTINGS, UID, decide, facts, gpu, heard, later, thrift
from wattmesh.telemetry.actuator.rules import own_locks
from wattmesh.telemetry.actuator.rules.facts import GpuFacts, GpuProcess
from wattmesh.telemetry.desired import LeaseKind, Wish

MINE = GpuProcess(pid=42, uid=UID)
THEIRS = GpuProcess(pid=43, uid=UID + 1)
ECONOMY = ("GPU-0", LeaseKind.ECONOMY)
STEEP = replace(SETTINGS, step_share=1.0)


@pytest.mark.parametrize(
    ("wish", "seen", "words"),
    [
        (thrift(clock=1200), facts(), ""),
        (thrift(clock=1200), facts(processes=(MINE, THEIRS)), "of uid 1001, not of 1000"),
        (thrift(clock=1200), facts(processes=(GpuProcess(pid=9, uid=None),)), "not of 1000"),
        (thrift(clock=1200), facts(processes=()), "no process computes"),
        (thrift(clock=1200), facts(processes=None), "does not say which processes"),
        (thrift(clock=1200), None, "no GPU of this node"),
        (thrift(cap=500), facts(), "and nothing else"),
        (thrift(clock=1200, cap=500), facts(), "and nothing else"),
        (thrift(clock=1200, lease_s=61), facts(), "above 60"),
    ],
)
def test_only_the_clock_of_gpus_in_use_by_that_user_alone(
    wish: Wish, seen: GpuFacts | None, words: str
) -> None:
    """Each refusal has its sentence; the first case is the one that may."""
    said = own_locks.refusal(UID, [wish], heard(), {}, {"GPU-0": seen})
    assert bool(said) is bool(words)
    assert words in said


def test_the_controllers_wish_counts_and_the_users_does_not() -> None:
    """Asked for later it is refused; asked for before, it gives way."""
    controller = heard(thrift(clock=1500))
    assert "freeze that run" in own_locks.refusal(
        UID, [thrift(clock=1200)], controller, {}, {"GPU-0": facts()}
    )
    mine = own_locks.taken({}, UID, [thrift(clock=1200)], NOW)
    both = own_locks.beside(controller, mine)
    assert both.leases[ECONOMY].wish.clock_mhz == 1500
    alone = own_locks.beside(heard(), mine)
    assert alone.leases[ECONOMY].wish == replace(thrift(clock=1200), holder="uid-1000")
    (act,) = decide(
        gpu(facts()),
        alone.leases[ECONOMY].wish,
        claims=own_locks.claims_of(mine),
        settings=STEEP,
    ).acts
    assert (act.clock_mhz, act.group) == (1200, "uid-1000")


def test_a_lock_ends_when_nobody_renews_it_and_others_stay() -> None:
    """Each user's locks are replaced as a whole, and end by themselves."""
    first = own_locks.taken({}, UID, [thrift(clock=1200, lease_s=20)], NOW)
    both = own_locks.taken(first, 7, [thrift("GPU-1", clock=900, lease_s=40)], later(10))
    assert own_locks.live(both, later(19.9)).keys() == {UID, 7}
    assert own_locks.live(both, later(20)).keys() == {7}
    assert own_locks.taken(both, UID, [], later(10)).keys() == {7}
    taken = own_locks.refusal(
        UID, [thrift("GPU-1", clock=1200)], heard(), both, {"GPU-1": facts("GPU-1")}
    )
    assert "uid 7 holds a lock on GPU-1" in taken
