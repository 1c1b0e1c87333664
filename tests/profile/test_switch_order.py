"""Which switches a profile measures: for any number of layouts, launch by launch, and of a job."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.profile.test_measuring import ACT, JOB, A, B, C, profiled
from tests.profile.test_search import state
from wattmesh.controller.profile.job import Candidate, ProfileJob, SwitchPairs
from wattmesh.controller.profile.results import MeasuredSwitch, ProfileState
from wattmesh.controller.profile.switch_order import (
    OnceMore,
    order_of,
    stops_of,
    switches_left,
)
from wattmesh.reconfig.layout import Layout


def job_of(count: int, *, warm: bool = True) -> ProfileJob:
    """A job with so many layouts, whose pairs are all wanted."""
    points = tuple(Candidate(id=f"P{at}", layout=Layout(tp=at + 1)) for at in range(count))
    return replace(JOB, points=points, reference="P0", pairs=SwitchPairs.ALL, warm_switches=warm)


def launched(
    job: ProfileJob, known: ProfileState, fails: frozenset[tuple[str, str]] = frozenset()
) -> ProfileState:
    """Go where one launch goes, as the tour does: switches that fail leave the job where it is."""
    order, here = order_of(job), job.points[0]
    built = {here.layout}
    for _ in range(500):
        target = order.next(here, built, known)
        if target is None:
            return known
        cold = target.layout not in built
        if (here.id, target.id) in fails:
            known = replace(known, closed=(*known.closed, (here.id, target.id)))
            continue
        order.tried(here.id, target.id, cold=cold)
        switch = MeasuredSwitch(
            origin=here.id, target=target.id, seconds=1.0, energy_j=1.0, cold=cold
        )
        known = replace(known, switches=(*known.switches, switch))
        built.add(target.layout)
        here = target
    raise AssertionError("it never ends")


@pytest.mark.parametrize("count", range(2, 9))
@pytest.mark.parametrize("warm", [True, False])
def test_every_ordered_pair_is_measured_cold_and_warm(count: int, warm: bool) -> None:
    """In about as many launches as there are layouts, and hardly a switch that measures nothing."""
    job = job_of(count, warm=warm)
    known = state(**{each.id: 100.0 for each in job.points})
    launches = 0
    while switches_left(job, known):
        before = switches_left(job, known)
        known, launches = launched(job, known), launches + 1
        assert switches_left(job, known) < before
    names = [each.id for each in job.points]
    every = {(one, other) for one in names for other in names if one != other}
    cold = {(each.origin, each.target) for each in known.switches if each.cold}
    assert cold == {each for each in every if each[1] != "P0"}
    found = {(each.origin, each.target) for each in known.switches if not each.cold}
    assert found == every if warm else found <= every
    assert launches <= 1.3 * count + 1
    wanted = len(cold) + (len(every) if warm else 0)
    assert len(known.switches) <= 1.25 * wanted + 1


def test_a_pair_that_fails_does_not_hold_up_the_others() -> None:
    """It is tried once; all others are measured in the launches that it takes."""
    job = job_of(4)
    known = state(**{each.id: 100.0 for each in job.points})
    bad = frozenset({("P1", "P2")})
    for _ in range(8):
        known = launched(job, known, bad)
    assert switches_left(job, known) == 0
    assert known.closed == tuple(bad)
    assert not [each for each in known.switches if (each.origin, each.target) in bad]


def test_a_clock_is_no_stop_of_its_own() -> None:
    """Of points with one layout the unlocked one stands for it; those without numbers are none."""
    slow = Candidate(id="A1", layout=A.layout, clock_mhz=900)
    found = stops_of((slow, A, B, C), state(A1=1.0, A=1.0, B=1.0))
    assert found == (A, B)


def test_the_tour_alone_goes_to_every_point_once_more() -> None:
    """The default: as many warm switches as points, those without numbers left out."""
    assert isinstance(order_of(JOB), OnceMore)
    order, known, here, seen = OnceMore((A, B, C)), state(A=1.0, B=1.0), B, []
    while (target := order.next(here, {A.layout, B.layout}, known)) is not None:
        seen.append(target.id)
        here = target
    assert seen == ["A", "B"]
    assert switches_left(replace(JOB, points=(A, B)), known) == 0


def test_a_job_measures_all_its_pairs(tmp_path: Path) -> None:
    """Three layouts: six warm switches and the four that can be cold; the points only once."""
    job = replace(JOB, points=(A, B, C), pairs=SwitchPairs.ALL)
    act = replace(ACT, step_s={**ACT.step_s, "tp2": 0.005})
    told: list[str] = []
    found = profiled(tmp_path / "p", act, job, told)
    pairs = {(each.origin, each.target): each for each in found.catalogue.switch.pairs}
    assert len(pairs) == 6
    assert all(each.warm_s is not None for each in pairs.values())
    cold = {(each.origin, each.target) for each in found.progress.switches if each.cold}
    assert cold == {each for each in pairs if each[1] != "A"}
    assert sum("tokens/s" in each for each in told) == 3
    again = profiled(tmp_path / "p", act, job)
    assert again.progress == found.progress
