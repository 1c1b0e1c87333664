"""The rules beside the joint plan: they keep the limits, and the promises that were given."""

from dataclasses import replace

import pytest

from tests.cluster.cluster_cases import cluster, waiting
from wattmesh.policies.cluster.account import ClusterAccount, account
from wattmesh.policies.cluster.arrivals import streamed
from wattmesh.policies.cluster.known_ahead import joint_bound_g, known_ahead
from wattmesh.policies.cluster.rules.first_come import first_come
from wattmesh.policies.cluster.rules.greedy import greedy, relative_slack
from wattmesh.policies.cluster.rules.one_by_one import one_by_one
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun, checked
from wattmesh.policies.planner.problem import NoPlan


def crowded(count: int = 4) -> tuple[SharedCluster, list[SharedRun]]:
    """Runs that come one after the other, under a cap that falls for four hours."""
    caps = tuple(5000.0 if 8 <= n < 12 else 7000.0 for n in range(36))
    site = replace(cluster(36), cap_w=caps)
    runs = [waiting(f"r{n}", 2 * n, 14 + 5 * n, 4.0) for n in range(count)]
    return site, [checked(site, each) for each in runs]


def followed(site: SharedCluster, runs: list[SharedRun], rule: str) -> ClusterAccount:
    """What a rule comes to."""
    if rule == "first-come":
        paths = {name: tuple(each.path) for name, each in first_come(site, runs).items()}
    elif rule == "greedy":
        paths = {name: tuple(each.path) for name, each in greedy(site, runs).items()}
    elif rule == "each-alone":
        paths = one_by_one(site, runs)[0]
    else:
        paths = streamed(site, runs).paths
    return account(site, runs, paths)


@pytest.mark.parametrize("rule", ["first-come", "greedy", "each-alone", "joint"])
def test_every_rule_keeps_gpus_and_cap_and_does_all_work(rule: str) -> None:
    """The cap falls with notice, and all are below it when it does."""
    site, runs = crowded()
    found = followed(site, runs, rule)
    assert (found.over_cap_s, found.over_gpus_s) == (0.0, 0.0)
    assert all(each.done_s is not None for each in found.runs.values())


def test_a_rule_that_looks_at_no_limit_is_caught() -> None:
    """Sabotaged twin: the same paths under half the GPUs and half the cap break both."""
    site, runs = crowded()
    paths = {name: tuple(each.path) for name, each in first_come(site, runs).items()}
    halved = replace(site, gpus=3, cap_w=tuple(each / 2 for each in site.cap_w))
    broken = account(halved, runs, paths)
    assert broken.over_cap_s > 0
    assert broken.over_gpus_s > 0


def test_a_run_has_begun_once_its_path_has_a_gpu() -> None:
    """Also one that never began, and one that waited first."""
    site, runs = crowded()
    starved = replace(site, cap_w=(1000.0,) * 36)
    begun = {
        each.begun: any(each.run.options[n].gpus for n in each.path)
        for found in (first_come(site, runs), first_come(starved, runs))
        for each in found.values()
    }
    assert begun == {True: True, False: False}


def test_first_come_does_not_wait_for_those_that_come_later() -> None:
    """Its first run goes as if it were alone."""
    site, runs = crowded()
    done = {name: each.done_s for name, each in first_come(site, runs).items()}
    alone = first_come(site, runs[:1])["r0"].done_s
    assert done["r0"] == alone


def test_what_is_known_ahead_loses_no_deadline_that_first_come_keeps() -> None:
    """And emits no more than first come, nor less than its bound."""
    site, runs = crowded(5)
    first = first_come(site, runs)
    paths = {name: tuple(each.path) for name, each in first.items()}
    done_s = {name: each.done_s for name, each in first.items()}
    found = known_ahead(site, runs, paths, done_s)
    assert not isinstance(found, NoPlan)
    mine = {name: each.path for name, each in found.plan.columns.items()}
    ahead, plain = account(site, runs, mine), account(site, runs, paths)
    for run in runs:
        ends_s, before_s = ahead.runs[run.name].done_s, plain.runs[run.name].done_s
        assert ends_s is not None
        assert before_s is not None
        assert ends_s <= max(run.deadline_s, before_s + 3600.0)
    assert ahead.grams <= plain.grams
    late_s = {run.name: max(run.deadline_s, done_s[run.name] or 0.0) for run in runs}
    bound_g = joint_bound_g(site, runs, {**late_s, **found.promised_s}, mine, rounds=5)
    assert bound_g is not None
    assert bound_g <= ahead.grams * (1 + 1e-9)


def test_a_promise_is_kept_whoever_comes_later() -> None:
    """A run that came first is as early as promised, though three more arrive."""
    site, runs = crowded()
    stream = streamed(site, runs)
    found = account(site, runs, stream.paths)
    for name, each in stream.runs.items():
        ends_s = found.runs[name].done_s
        assert ends_s is not None
        assert ends_s <= each.promised_s * (1 + 1e-9)
    assert stream.plans == len(runs)


def test_who_has_least_relative_slack_is_who_needs_its_time() -> None:
    """Time left over the time that is needed; late is below 1."""
    run = waiting("r", 0, 8, 4.0)
    assert relative_slack(run, run.tokens, 0.0) == pytest.approx(2.0)
    assert relative_slack(run, run.tokens, 6 * 3600.0) < 1
