"""The joint plan against trying every set of paths: its bound holds, and it keeps every limit."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.cluster.cluster_cases import HOUR, cluster, tiny, try_all, waiting
from wattmesh.errors import InputInvalid
from wattmesh.policies.cluster.account import account
from wattmesh.policies.cluster.joint import JointPlan, plan_together
from wattmesh.policies.cluster.master import MixedPlans, PlanPool
from wattmesh.policies.cluster.neighbourhood import improved
from wattmesh.policies.cluster.pricing import PricedPlan, priced
from wattmesh.policies.cluster.relaxation import first_prices
from wattmesh.policies.cluster.share import RunShare, idle_g, limits, share
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun, checked
from wattmesh.policies.planner.problem import NoPlan

ROUNDING = 1e-6
DRAWN: Counter[str] = Counter()


def laid_out(site: SharedCluster, runs: list[SharedRun]) -> list[RunShare]:
    """Each run until its deadline."""
    return [share(site, each, done_by_s=each.deadline_s) for each in runs]


def together(site: SharedCluster, runs: list[SharedRun]) -> JointPlan:
    """The joint plan of runs that have one."""
    found = plan_together(laid_out(site, runs), limits(site))
    assert isinstance(found, JointPlan), found
    return found


def crowded() -> tuple[SharedCluster, list[SharedRun]]:
    """Four runs of which two fit beside each other."""
    site = cluster(gpus=6, cap_w=7000.0)
    runs = [waiting(f"r{n}", n, 20 + n, 4.0) for n in range(4)]
    return site, [checked(site, each) for each in runs]


@settings(max_examples=25, deadline=None)
@given(tiny())
def test_no_joint_plan_beats_the_bound(drawn: tuple[SharedCluster, list[SharedRun]]) -> None:
    """Trying everything finds nothing below the bound, nor below the plan that was found."""
    site, runs = drawn
    best = try_all(site, runs)
    found = plan_together(laid_out(site, runs), limits(site))
    DRAWN["none" if best is None else "some"] += 1
    if isinstance(found, NoPlan):
        # Whole plans are searched for; where every run has room for its own there is one.
        DRAWN["missed"] += best is not None
        return
    assert best is not None
    grams = found.grams + idle_g(site)
    assert found.bound_g + idle_g(site) <= best * (1 + ROUNDING)
    assert grams >= best * (1 - ROUNDING)
    DRAWN["best" if grams <= best * (1 + ROUNDING) else "near"] += 1
    paths = {name: each.path for name, each in found.columns.items()}
    assert account(site, runs, paths).grams == pytest.approx(grams, rel=ROUNDING)


def test_what_was_drawn_held_what_it_should() -> None:
    """There were clusters with a joint plan and without, and most plans were the best there is."""
    if not DRAWN["some"]:
        test_no_joint_plan_beats_the_bound()
    assert DRAWN["some"] >= 5
    assert DRAWN["best"] > DRAWN["near"]
    assert DRAWN["missed"] <= DRAWN["some"] // 4


def test_a_bound_at_wrong_prices_would_be_caught() -> None:
    """Sabotaged twin: who forgets to subtract what all there is would cost bounds too high."""
    site, runs = crowded()
    shares, limit = laid_out(site, runs), limits(site)
    found = together(site, runs)
    dear = first_prices(shares, limit)
    assert dear.max() > 0
    asked = [priced(each, prices=dear, room=limit) for each in shares]
    paid = sum(each.bound_g for each in asked if isinstance(each, PricedPlan))
    honest = paid - float(np.sum(dear * limit))
    assert honest <= found.grams * (1 + ROUNDING) < paid


def test_limits_are_kept_second_by_second() -> None:
    """GPUs and cap, under the account's own eyes; without them the same runs would break both."""
    site, runs = crowded()
    found = together(site, runs)
    paths = {name: each.path for name, each in found.columns.items()}
    kept = account(site, runs, paths)
    assert (kept.over_cap_s, kept.over_gpus_s) == (0.0, 0.0)
    alone = [priced(each) for each in laid_out(site, runs)]
    careless = {each.column.run: each.column.path for each in alone if isinstance(each, PricedPlan)}
    broken = account(site, runs, careless)
    assert broken.over_cap_s > 0
    assert broken.over_gpus_s > 0
    assert broken.longest_over_s <= broken.over_cap_s


def test_every_run_is_done_by_its_deadline() -> None:
    """None pays for another's saving with its deadline."""
    site, runs = crowded()
    done = {name: each.done_s for name, each in together(site, runs).columns.items()}
    for run in runs:
        assert done[run.name] + run.first * HOUR <= run.deadline_s * (1 + ROUNDING)


def test_a_known_joint_plan_is_never_made_worse() -> None:
    """Nor by planning groups anew, which keeps the limits."""
    site, runs = crowded()
    shares, limit = laid_out(site, runs), limits(site)
    first = together(site, runs)
    again = plan_together(shares, limit, known=[first.columns], rounds=1)
    assert isinstance(again, JointPlan)
    assert again.grams <= first.grams * (1 + ROUNDING)
    better = improved(shares, limit, again, tries=2)
    assert better.bound_g <= better.grams <= again.grams
    paths = {name: each.path for name, each in better.columns.items()}
    kept = account(site, runs, paths)
    assert (kept.over_cap_s, kept.over_gpus_s) == (0.0, 0.0)


def test_runs_that_cannot_fit_have_no_joint_plan() -> None:
    """Four runs that each need the whole cluster until the same hour."""
    site = cluster(gpus=4)
    runs = [checked(site, waiting(f"r{n}", 0, 5, 4.0)) for n in range(4)]
    assert isinstance(plan_together(laid_out(site, runs), limits(site)), NoPlan)


def test_a_program_that_the_solver_gives_up_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With grams of 10^19 HiGHS ends without a solution: plans and bound are those of before."""
    given_up: list[bool] = []
    solve = PlanPool.mixed

    def watched(pool: PlanPool) -> MixedPlans | None:
        found = solve(pool)
        given_up.append(found is None)
        return found

    monkeypatch.setattr(PlanPool, "mixed", watched)
    site, runs = crowded()
    huge = replace(site, g_per_kwh=tuple(1e15 * each for each in site.g_per_kwh))
    found = together(huge, runs)
    assert given_up == [True]
    assert set(found.columns) == {each.name for each in runs}
    assert 0 < found.bound_g <= found.grams


def test_no_runs_are_a_plan_of_nothing() -> None:
    """An empty cluster emits what its idle GPUs do."""
    found = plan_together([], limits(cluster()))
    assert isinstance(found, JointPlan)
    assert found.grams == found.bound_g == found.gap == 0.0


def test_freed_gpus_are_charged_while_they_idle() -> None:
    """The same path emits less only where free GPUs are switched off, or owned by another."""
    site, run = cluster(), checked(cluster(), waiting("r", 0, 20, 2.0))
    path = {"r": (1,) * 20}
    idle, off = account(site, [run], path), account(replace(site, idle_w_per_gpu=0.0), [run], path)
    assert idle.runs["r"].grams == off.runs["r"].grams
    assert off.idle_g == 0.0 < idle.idle_g
    other = checked(site, waiting("s", 0, 20, 2.0))
    both = account(site, [run, other], {**path, "s": (1,) * 20})
    assert both.idle_g < idle.idle_g


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (lambda: replace(cluster(), cap_w=(100.0,) * 24), "idle GPUs draw"),
        (lambda: replace(cluster(), gpus=0), "0 GPUs"),
        (lambda: replace(cluster(), g_per_kwh=(1.0,)), "1 intensities"),
        (lambda: replace(cluster(), cap_w=(float("nan"),) * 24), "negative"),
        (lambda: checked(replace(cluster(), idle_w_per_gpu=2000.0), waiting("r", 0, 9, 1)), "idle"),
        (lambda: checked(replace(cluster(), seconds=(60.0,) * 24), waiting("r", 0, 9, 1)), "slot"),
        (lambda: checked(cluster(), replace(waiting("r", 0, 9, 1), tokens=0.0)), "0 tokens"),
    ],
)
def test_what_has_no_meaning_is_refused(spoilt: object, said: str) -> None:
    """In one sentence with the numbers."""
    assert callable(spoilt)
    with pytest.raises(InputInvalid, match=said):
        spoilt()
