"""The guard against what switches really take, through the daemon's own decisions.

The run says that its new layout stands long before the first step at normal pace has ended.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.replay.test_deadline import LIMITS, Adversary, Deceived, Foul, Whims, Z, known, lazy
from wattmesh.controller.replay.world import World, run
from wattmesh.policies.run_context import times
from wattmesh.policies.switch_time import ENOUGH, SwitchKind, SwitchRecord
from wattmesh.reconfig.catalogue import PairCost, Release, SwitchCost

TOLD_S, WHOLE_S = 60.0, 1800.0
SLOW = SwitchCost(layout_s=WHOLE_S, layout_energy_j=1e5, reacquire_s=0.0, source="measured")
ONE_ATTEMPT = replace(LIMITS, failed_limit=1, guard_margin=0.01)
COLD = Foul(throughput=Z, told_share=TOLD_S / WHOLE_S)


def slow(slack: float = 1.7, **facts: Any) -> Adversary:
    """Switches of half an hour, of which a minute is told; plans that want the slowest point."""
    facts.setdefault("noise", COLD)
    facts.setdefault("catalogue", replace(known(release=Release.PARKED), switch=SLOW))
    one = lazy(slack, **facts)
    return replace(one, scene=replace(one.scene, margin=Z))


def forged(origin: str, target: str) -> tuple[SwitchRecord, ...]:
    """As many as are enough of the told minute, each as if the first step had been in it."""
    record = SwitchRecord(
        origin=origin,
        target=target,
        kind=SwitchKind.IN_PLACE,
        told_s=TOLD_S,
        at_pace_s=TOLD_S,
        ago_s=1e6,
    )
    return (record,) * ENOUGH


FORGED = tuple(each for one in "CD" for other in "AB" for each in forged(one, other))


def late_s(one: Adversary, **view: Any) -> float:
    """How late the run ends whose guard allows one attempt; `view`: what a twin sees instead."""
    driver = one.driver(Deceived, changes={"policy": ONE_ATTEMPT}, view=view)
    state = run(one.scene, driver, cycle_s=one.cycle_s)
    return state.at_s - (one.scene.deadline - one.scene.start).total_seconds()


def test_a_guard_that_goes_by_what_was_told_is_late_and_one_that_does_not_is_in_time() -> None:
    """60 s told, 1800 s needed: the same world, plans and decisions."""
    assert late_s(slow()) <= 0.0
    assert late_s(slow(), switches=FORGED) > 1000.0


def test_the_world_tells_a_switch_first_and_completes_it_when_it_has_trained() -> None:
    """What the guard reads is made by the run itself, there and back."""
    one = slow(3.0)
    world = World(one.scene)
    world.order("D")
    seen: list[SwitchRecord] = []
    while len(seen) < 3 and not world.done:
        world.go_to(world.next_s())
        newest = world.state.switches[:1]
        if newest and newest[0] not in seen:
            seen.append(newest[0])
            assert world.state.point.id == "D"
            assert (world.state.busy_until_s is not None) is (len(seen) == 1)
        if len(seen) == 2:
            break
    assert [round(each.told_s) for each in seen] == [TOLD_S, TOLD_S]
    assert [each.at_pace_s and round(each.at_pace_s) for each in seen] == [None, WHOLE_S]


class Warm(Foul):
    """Switches that take a twentieth of the catalogue's cold figure."""

    def takes(self, switch: int) -> float:
        """A share of it."""
        return 0.05


def test_enough_complete_switches_let_the_guard_count_on_less_than_the_catalogue() -> None:
    """Warm switches, measured to their first steps: the figure falls once there are enough."""
    one = slow(6.0, noise=Warm(throughput=Z, told_share=0.5), hours=40.0)
    one = replace(one, plans=partial(Whims, "D", "A"))
    driver = one.driver()
    state = run(one.scene, driver, cycle_s=one.cycle_s)
    made = [each for each in state.switches if (each.origin, each.target) == ("A", "D")]
    assert len(made) >= ENOUGH
    seen = driver.observe(driver.world.now).observation
    case_s = []
    for records in (made[: ENOUGH - 1], made[:ENOUGH]):
        view = replace(seen.runs[0], switches=tuple(records))
        job = one.scene.catalogue
        case_s.append(times(view, job).seconds(job.point("A"), job.point("D")))
    assert case_s == [WHOLE_S, pytest.approx(0.05 * WHOLE_S)]


def test_a_pair_s_own_figure_is_counted_on() -> None:
    """Only one way back is slow: a guard that takes the general figure for it is late."""
    pair = PairCost(origin="D", target="A", seconds=WHOLE_S, energy_j=1e5)
    ways = (pair, replace(pair, target="B"))
    quick = replace(SLOW, layout_s=TOLD_S)
    job = replace(known(release=Release.PARKED), switch=replace(quick, pairs=ways))
    assert late_s(slow(1.5, catalogue=job)) <= 0.0
    assert late_s(slow(1.5, catalogue=job), catalogue=replace(job, switch=quick)) > 1000.0
