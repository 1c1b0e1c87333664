"""Runs that share a cap from its first hour to their ends: decided, held and followed as live."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache

from tests.builders.capped_runs import CLOCKED, FAST_W, SLOW_W, sharing
from tests.builders.observations import NOW
from wattmesh.policies.cluster.joint_question import JointAnswer, joint_question, rooms
from wattmesh.policies.cluster.many_runs import answered_together
from wattmesh.policies.decision import PlanView, RoomStep, RunView
from wattmesh.policies.planner.mpc import question
from wattmesh.policies.planner.planning import answered
from wattmesh.policies.powercap.capped import loads, under
from wattmesh.policies.powercap.powercap import GpuPowerLimits, cap
from wattmesh.policies.rules.decide import decide

STEP = timedelta(minutes=15)
POINTS = {each.id: each for each in CLOCKED.points}
GPUS = {f"r-{n}": tuple(f"g{n}{k}" for k in range(4)) for n in range(3)}
BOARDS = [
    GpuPowerLimits(gpu_uuid=g, limit_w=700.0, floor_w=150.0) for all_ in GPUS.values() for g in all_
]
CAP_W = 2 * FAST_W + SLOW_W


@cache
def lived(*, jointly: bool) -> tuple[dict[str, float], float]:
    """Follow three runs for 12 h; give the hour in which each ends, and the most watts counted."""
    start = sharing(3, None)
    here = {each.run: "fast" for each in start.runs}
    left = {each.run: float(each.tokens_total - each.tokens) for each in start.runs}
    plans: dict[str, PlanView | None] = {}
    shared: Mapping[str, tuple[RoomStep, ...]] = {}
    ends, most_w = dict[str, float](), 0.0
    for tick in range(48):
        now = NOW + tick * STEP
        slots = tuple(each for each in start.carbon.slots if each.end > now)
        runs = tuple(_now(each, here, left) for each in start.runs if left[each.run] > 0)
        seen = replace(start, now=now, runs=runs, carbon=replace(start.carbon, slots=slots))
        known = [each for each in BOARDS if any(each.gpu_uuid in GPUS[run.run] for run in runs)]
        held = cap(CAP_W, known, loads(seen, GPUS))
        most_w = max(most_w, held.bound_w)
        seen = under(seen, held, NOW + timedelta(hours=12))
        if jointly and tick % 2 == 0:
            asked = joint_question(seen)
            answer = answered_together(asked) if asked else None
            shared = rooms(asked, answer) if asked and isinstance(answer, JointAnswer) else {}
        for run in seen.runs:
            asked_alone = question(seen, replace(run, shared_room=shared.get(run.run, ())))
            found = answered(asked_alone, plans.get(run.run)) if asked_alone else None
            plans[run.run] = found if isinstance(found, PlanView) else None
        planned = replace(seen, runs=tuple(replace(r, plan=plans[r.run]) for r in seen.runs))
        for decision in decide(planned):
            if decision.target in POINTS:
                here[decision.run] = decision.target
        for run in seen.runs:
            at = POINTS[held.points[run.run].id]
            seconds = min(STEP.total_seconds(), left[run.run] / at.tokens_per_s)
            left[run.run] -= at.tokens_per_s * seconds
            if left[run.run] <= 1e-6:
                left[run.run] = 0.0
                ends[run.run] = tick * 0.25 + seconds / 3600
    return ends, most_w


def _now(run: RunView, here: Mapping[str, str], left: Mapping[str, float]) -> RunView:
    """Give a run as it reports itself: at what it was told last, however a cap holds it."""
    tokens = run.tokens_total - round(left[run.run])
    return replace(run, current=POINTS[here[run.run]], tokens=tokens)


def test_a_joint_plan_is_followed_under_the_cap_and_every_run_is_in_time() -> None:
    """One makes room, then another goes faster; at no time is more counted than the cap."""
    ends, most_w = lived(jointly=True)
    assert (len(ends), max(ends.values()) <= 12.0) == (3, True)
    assert most_w <= CAP_W + 1e-6


def test_alone_they_are_late() -> None:
    """The twin: each counts on what the cap leaves it now, so none makes room for another."""
    ends, most_w = lived(jointly=False)
    assert len(ends) < 3
    assert most_w <= CAP_W + 1e-6
