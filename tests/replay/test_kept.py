"""Replayed from look to look, a run keeps the service level and stays under a power cap."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache

import pytest

from tests.builders.replays import days, means, perfect, scene
from wattmesh.controller.cycle.cycle import CycleObservation
from wattmesh.controller.replay.drivers import LivePolicy, PlansNow
from wattmesh.controller.replay.world import World, run
from wattmesh.policies.decision import CapView, Decision, Observation, PolicySettings
from wattmesh.policies.slowing import needs_w

HOUR_S = 3600.0


class Watched(LivePolicy):
    """Our own decisions, and where they led."""

    def look(self, world: World) -> None:
        """Note where the run is."""
        state = world.state
        self.looks.append((state.at_s, state.tokens, "" if state.asleep else state.point.id))
        super().look(world)

    @property
    def looks(self) -> list[tuple[float, float, str]]:
        """(time, tokens, point) at each look."""
        known: list[tuple[float, float, str]] = self.__dict__.setdefault("known", [])
        return known


class Forgetful(Watched):
    """A sabotaged driver that never knows what was trained before."""

    def see(self, now: datetime) -> Observation:
        """Forget."""
        seen = super().see(now)
        return replace(seen, runs=tuple(replace(each, trained=()) for each in seen.runs))


class Capped(Watched):
    """Under an operator's cap that has room for B, and for A not, from one hour to another."""

    hours = (12.0, 30.0)

    def act(self, seen: CycleObservation, decisions: Sequence[Decision]) -> None:
        """Hold its boards at B when the cap begins, as agents do."""
        if seen.observation.cap and self.world.state.point.id == "A":
            self.world.order("B")
        else:
            super().act(seen, decisions)

    def see(self, now: datetime) -> Observation:
        """Tell of the cap while it holds."""
        scene, state, seen = self.world.scene, self.world.state, super().see(now)
        begin_h, end_h = self.hours
        if not begin_h * HOUR_S <= state.at_s < end_h * HOUR_S:
            return seen
        room_w = needs_w(scene.catalogue.point("B"))
        cap = CapView(cap_w=room_w, until=scene.start + timedelta(hours=end_h))
        runs = (replace(seen.runs[0], room_w=room_w),)
        return replace(seen, cap=cap, runs=runs)


def worst(looks: list[tuple[float, float, str]], window_s: float) -> float:
    """The lowest mean speed over any window that begins at a look, tokens/s."""
    times = [at_s for at_s, _, _ in looks]

    def by(at_s: float) -> float:
        after = min(len(looks) - 1, bisect_right(times, at_s))
        (t0, y0, _), (t1, y1, _) = looks[after - 1], looks[after]
        return y0 + (y1 - y0) * (at_s - t0) / (t1 - t0)

    starts = [at_s for at_s in times if at_s + window_s <= times[-1]]
    return min((by(at_s + window_s) - by(at_s)) / window_s for at_s in starts)


def replayed(kind: type[Watched], share: float, window_h: float) -> Watched:
    """A run of 16 h at A with 40 h of time."""
    on = days(8, seed=1)
    limits = PolicySettings(
        dwell_s=HOUR_S,
        max_switches_per_day=24,
        sla_throughput_share=share,
        sla_window_s=window_h * HOUR_S,
    )
    driver = kind(means(perfect(on), policy=limits), PlansNow())
    state = run(scene(on, hours=16, slack=2.5, day=2), driver, cycle_s=900.0)
    driver.looks.append((state.at_s, state.tokens, ""))
    assert state.at_s <= 40 * HOUR_S
    return driver


@cache
def free() -> Watched:
    """The same run with no level to keep."""
    return replayed(Watched, 0.0, 24.0)


@pytest.mark.parametrize(("share", "window_h"), [(0.9, 6.0)])
def test_the_level_is_kept_over_every_window_of_the_run(share: float, window_h: float) -> None:
    """Also those that begin before a plan and end after it; the level is one that binds."""
    window_s = window_h * HOUR_S
    assert worst(replayed(Watched, share, window_h).looks, window_s) >= share * 1000.0 - 1.0
    assert worst(free().looks, window_s) < share * 1000.0 - 50.0


def test_a_plan_that_forgets_what_was_trained_before_misses_the_level() -> None:
    """The sabotaged twin: each plan puts the work off to the end of a window that never comes."""
    assert worst(replayed(Forgetful, 0.6, 24.0).looks, 24 * HOUR_S) < 550.0


def under_cap(driver: Watched) -> set[str]:
    """Points that the run is at while the cap holds, from the second look on that sees it."""
    begin_h, end_h = Capped.hours
    return {
        point for at_s, _, point in driver.looks if (begin_h + 0.4) * HOUR_S < at_s < end_h * HOUR_S
    }


def capped(kind: type[Watched]) -> Watched:
    """A run of 30 h at A with 34.5 h of time: B alone would be late."""
    on = days(6, seed=1)
    driver = kind(means(perfect(on)), PlansNow())
    state = run(scene(on, hours=30, slack=1.15, day=2, first="B"), driver, cycle_s=900.0)
    assert state.at_s <= 34.5 * HOUR_S
    return driver


def test_a_capped_run_uses_no_point_above_the_cap_and_makes_up_for_it_later() -> None:
    """In time nevertheless, for A is used before and after; without a cap it is in between."""
    kept = capped(Capped)
    assert "A" not in under_cap(kept)
    points = [(at_s, point) for at_s, _, point in kept.looks]
    assert "A" in {point for at_s, point in points if at_s > Capped.hours[1] * HOUR_S}
    assert "A" in under_cap(capped(Watched))
