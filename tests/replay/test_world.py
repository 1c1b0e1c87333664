"""The replayed run does what a run does, and pays for all of it."""

from datetime import timedelta

import pytest

from tests.builders.replays import START, grid, job, scene
from wattmesh.controller.replay.world import Noise, World, run
from wattmesh.reconfig.catalogue import Release


class Script:
    """Steers by the clock: the wish that is due, once."""

    def __init__(self, *wishes: tuple[float, str]) -> None:
        """Take (seconds, wish) in order."""
        self._wishes = list(wishes)

    def look(self, world: World) -> None:
        """Order what is due."""
        if self._wishes and world.state.at_s >= self._wishes[0][0]:
            world.order(self._wishes.pop(0)[1])


def test_a_run_that_never_switches_pays_its_power_at_the_grid_of_each_hour() -> None:
    """2.5 h at 1600 W: 400 g/kWh, 200 g/kWh, and half an hour of 100."""
    state = run(scene(grid([400, 200, 100]), hours=2.5, slack=2), Script(), cycle_s=900)
    assert state.at_s == pytest.approx(9000.0)
    assert state.energy_j == pytest.approx(1600 * 9000)
    assert state.carbon_g == pytest.approx(1.6 * (400 + 200 + 50))


def test_a_layout_change_waits_for_its_boundary_and_costs_seconds_and_joules() -> None:
    """Ordered at 0, begun at the boundary after 10 s, over after 60 s; by hand.

    100,000 tokens are 10 steps: the boundary is at 100 s. Then 60 s at 1000 W, then C.
    """
    world = World(scene(grid([360] * 9), hours=1, slack=4))
    world.order("C")
    world.go_to(world.next_s())
    assert (world.state.at_s, world.state.tokens) == (100.0, 100_000.0)
    world.go_to(world.next_s())
    assert (world.state.at_s, world.state.point.id, world.state.tokens) == (160.0, "C", 100_000.0)
    assert world.state.energy_j == pytest.approx(1600 * 100 + 60_000)
    while not world.done:
        world.go_to(world.next_s())
    rest_s = 3_500_000 / 450
    assert world.state.at_s == pytest.approx(160 + rest_s)
    # 360 g/kWh is 1e-4 g/J.
    assert world.state.carbon_g == pytest.approx(1e-4 * (220_000 + 560 * rest_s))


def test_a_clock_changes_at_once_and_for_nothing() -> None:
    """No boundary, no joules."""
    world = World(scene(grid([360] * 9), hours=1, slack=4))
    world.order("B")
    assert (world.state.point.id, world.state.clock_changes) == ("B", 1)
    assert not world.state.switched_s


def test_a_sleeping_run_draws_nothing_if_its_gpus_are_given_back_and_wakes_at_once() -> None:
    """It sleeps from the first boundary and a switch on, and pays a switch to wake."""
    asleep = World(scene(grid([360] * 9), hours=1, slack=8))
    asleep.order("")
    asleep.go_to(100.0)
    asleep.go_to(160.0)
    before_j = asleep.state.energy_j
    assert asleep.state.asleep
    asleep.go_to(3600.0)
    assert asleep.state.energy_j == before_j
    asleep.order("A")
    asleep.go_to(asleep.next_s())
    assert (asleep.state.at_s, asleep.state.asleep) == (3660.0, False)
    assert asleep.state.energy_j == pytest.approx(before_j + 60_000)


def test_a_sleeping_run_that_keeps_its_gpus_pays_for_them() -> None:
    """Four at 70 W."""
    world = World(scene(grid([360] * 9), hours=1, slack=8, catalogue=job(release=Release.HELD)))
    world.order("")
    world.go_to(100.0)
    world.go_to(160.0)
    before_j = world.state.energy_j
    world.go_to(260.0)
    assert world.state.energy_j == pytest.approx(before_j + 4 * 70 * 100)


def test_a_failed_switch_takes_twice_as_long_and_leaves_the_run_where_it_was() -> None:
    """And the next one may be tried."""
    world = World(scene(grid([360] * 9), hours=1, slack=8, noise=Noise(switch_failure=0.999999)))
    world.order("C")
    world.go_to(100.0)
    world.go_to(world.next_s())
    state = world.state
    assert (state.at_s, state.point.id, state.failed) == (220.0, "A", 1)
    assert state.energy_j == pytest.approx(1600 * 100 + 2 * 60_000)


def test_noise_only_ever_slows_a_run_and_is_the_same_for_all() -> None:
    """By no more than was said."""
    noise = Noise(throughput=0.05, seed=3)
    speeds = [noise.speed(3600.0 * hour) for hour in range(200)]
    assert all(0.95 <= speed <= 1.0 for speed in speeds)
    assert speeds == [Noise(throughput=0.05, seed=3).speed(3600.0 * hour) for hour in range(200)]
    slow = run(scene(grid([360] * 9), hours=3, slack=2, noise=noise), Script(), cycle_s=900)
    assert 3 * 3600 < slow.at_s < 3 * 3600 / 0.95


class Forgetful(World):
    """A sabotaged world in which a switch draws nothing."""

    def _cost(self, origin: str, target: str) -> tuple[float, float, float]:
        return *super()._cost(origin, target)[:2], 0.0


@pytest.mark.parametrize(("kind", "honest"), [(World, True), (Forgetful, False)])
def test_energy_is_that_of_the_points_and_the_switches(kind: type[World], honest: bool) -> None:
    """The sum over where the run was; a world that forgets its switches is caught."""
    world = kind(scene(grid([360] * 9), hours=1, slack=4))
    world.order("C")
    while not world.done:
        world.go_to(world.next_s())
    state = world.state
    expected_j = 1600 * 100 + len(state.switched_s) * 60_000 + 560 * (state.at_s - 160)
    assert (state.energy_j == pytest.approx(expected_j)) is honest


def test_the_grid_is_integrated_over_any_time() -> None:
    """Across borders and from within intervals."""
    on = grid([100, 200])
    at = START + timedelta(minutes=90)
    assert on.burnt(at) - on.burnt(START + timedelta(minutes=30)) == 100 * 1800 + 200 * 1800
