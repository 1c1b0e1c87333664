"""Experts over two classes: counts by speed end first of all that fit, and waiting is paid for."""

import inspect
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from types import FunctionType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.controller.cli.main import main
from wattmesh.controller.cost_model.fitted import shipped
from wattmesh.policies.experts.counts import balanced_counts
from wattmesh.policies.layout_search import expert_groups as groups_module
from wattmesh.policies.layout_search.compared_counts import compare_counts, cost_groups
from wattmesh.policies.layout_search.expert_groups import (
    DealtExperts,
    ExpertGroups,
    counts_by_speed,
    dealt_to_two,
    equal_counts,
    expert_groups,
    group_costs,
    rows_of_gpu,
    take_groups,
)
from wattmesh.policies.layout_search.gpu_parts import GpuPart, MixedJob
from wattmesh.policies.layout_search.mixed import search_mixed
from wattmesh.policies.layout_search.search import CLOCKS
from wattmesh.policies.parallelism.energy import step_energy
from wattmesh.policies.parallelism.hardware import CLASSES, GpuClass
from wattmesh.policies.parallelism.presets import PRESETS
from wattmesh.policies.parallelism.step_time import layer_time, step_time

H100, A100 = CLASSES["h100"], CLASSES["a100"]
TWIN = replace(H100, name="twin")
MODEL = shipped()
SMALL = replace(PRESETS["qwen3-30b-a3b"], layers=4, experts=6, topk=2, vocab=8192)


def job(first: int, second: int, gpu: GpuClass = A100, *, like: GpuClass = H100) -> MixedJob:
    """A model of four layers of six experts on few GPUs."""
    parts = GpuPart(gpus=first, gpu=like), GpuPart(gpus=second, gpu=gpu)
    return MixedJob(shape=SMALL, global_batch=24, seq_len=2048, parts=parts)


def some(asked: MixedJob, count: int = 8) -> ExpertGroups:
    """List a few of its configurations, far from each other."""
    found = expert_groups(asked, {})
    size = len(found.batches)
    assert size
    return take_groups(found, np.unique(np.linspace(0, size - 1, count).astype(np.int64)))


def dealt(counts: tuple[int, ...], members: tuple[int, int], size: int) -> DealtExperts:
    """Give every configuration these counts, GPU by GPU, those of the first class first."""
    parts = counts[: members[0]], counts[members[0] :]
    most = [np.full(size, float(max(each))) for each in parts]
    mean = [np.full(size, sum(each) / len(each)) for each in parts]
    return DealtExperts(
        most=(most[0], most[1]), mean=(mean[0], mean[1]), fits=np.ones(size, dtype=bool)
    )


def vectors(members: tuple[int, int]) -> Iterator[tuple[int, ...]]:
    """Give all counts of up to six, GPU by GPU; which GPU of a class has which makes no odds."""
    parts = [itertools.combinations_with_replacement(range(7), each) for each in members]
    return (first + second for first, second in itertools.product(*parts))


@pytest.mark.parametrize("memory_gb", [80.0, 9.0])
@pytest.mark.parametrize("gpus", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_no_other_counts_end_a_step_earlier(gpus: tuple[int, int], memory_gb: float) -> None:
    """Beside every vector of counts, GPU by GPU, in each of some layouts and at each clock's own.

    With 9 GB on the fast class many vectors do not fit: the best of those that do is found.
    """
    asked = job(*gpus, like=replace(H100, memory_bytes=memory_gb * 1e9))
    groups = some(asked)
    for members in {tuple(each) for each in np.stack(groups.members, axis=1).astype(int).tolist()}:
        which = np.flatnonzero(
            (groups.members[0] == members[0]) & (groups.members[1] == members[1])
        )
        of_size = take_groups(groups, which)
        found = counts_by_speed(asked, of_size, MODEL)
        ours = group_costs(asked, of_size, found, MODEL)
        best_s = np.full(len(which), np.inf)
        for counts in vectors(members):
            if sum(counts) == 6:
                every = group_costs(asked, of_size, dealt(counts, members, len(which)), MODEL)
                best_s = np.minimum(best_s, every.step_s[0])
        np.testing.assert_array_equal(np.isfinite(best_s), found.fits)
        np.testing.assert_allclose(ours.step_s[0][found.fits], best_s[found.fits], rtol=1e-9)


@settings(max_examples=150, deadline=None)
@given(
    experts=st.integers(1, 40),
    members=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    seconds=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)),
    room=st.tuples(st.integers(-1, 45), st.integers(-1, 45)),
)
def test_counts_end_as_early_as_those_dealt_one_by_one(
    experts: int,
    members: tuple[int, int],
    seconds: tuple[float, float],
    room: tuple[int, int],
) -> None:
    """By the other algorithm, GPU by GPU; all experts are dealt, and none where no memory is."""
    pairs = [
        (np.array([float(first)]), np.array([float(second)]))
        for first, second in (members, seconds, room)
    ]
    found = dealt_to_two(float(experts), *pairs)
    fits = min(room) >= 0 and sum(m * r for m, r in zip(members, room, strict=True)) >= experts
    assert bool(found.fits[0]) is fits
    if not fits:
        return
    total = sum(m * float(each[0]) for m, each in zip(members, found.mean, strict=True))
    assert total == pytest.approx(experts)
    assert all(each[0] <= limit for each, limit in zip(found.most, room, strict=True))
    by_gpu = [at for at in (0, 1) for _ in range(members[at])]
    others = balanced_counts(
        experts, [1 / seconds[at] for at in by_gpu], most=[room[at] for at in by_gpu]
    )
    theirs = max(count * seconds[at] for count, at in zip(others, by_gpu, strict=True))
    ours = max(float(most[0]) * each for most, each in zip(found.most, seconds, strict=True))
    assert ours <= theirs * (1 + 1e-9)


def test_on_identical_gpus_counts_are_equal_and_so_is_every_bit() -> None:
    """Nothing waits, nothing is gained; and the ranking has each configuration once."""
    asked = job(2, 2, TWIN)
    groups = expert_groups(asked, {})
    alike = groups.layout[0].micro_batch == groups.layout[1].micro_batch
    groups = take_groups(groups, np.flatnonzero(alike))
    equal, by_speed = equal_counts(asked, groups), counts_by_speed(asked, groups, MODEL)
    whole = np.flatnonzero(6 % np.asarray(groups.layout[0].ep) == 0)
    assert len(whole)
    for at in (0, 1):
        np.testing.assert_array_equal(equal.most[at][whole], by_speed.most[at][whole])
        np.testing.assert_array_equal(equal.mean[at][whole], by_speed.mean[at][whole])
    costs = [group_costs(asked, groups, each, MODEL) for each in (equal, by_speed)]
    np.testing.assert_array_equal(costs[0].step_s[:, whole], costs[1].step_s[:, whole])
    np.testing.assert_array_equal(costs[0].joules[:, whole], costs[1].joules[:, whole])


def test_no_gpu_holds_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts stop where memory ends. A twin that asks no memory has counts that do not fit."""
    asked = job(1, 1, like=replace(H100, memory_bytes=9e9))
    groups = expert_groups(asked, {})
    found = counts_by_speed(asked, groups, MODEL)
    costs = group_costs(asked, groups, found, MODEL)
    assert found.fits.any()
    assert (costs.memory_share[found.fits] <= 1).all()
    total = sum(m * each for m, each in zip(groups.members, found.mean, strict=True))
    np.testing.assert_allclose(np.asarray(total)[found.fits], 6)
    held_back = found.fits & (found.most[0] <= found.most[1])
    assert held_back.any(), "memory must bind somewhere, or this says nothing"
    endless = np.full(len(groups.batches), 1e9)
    monkeypatch.setattr(groups_module, "_room", lambda *_: (endless, endless))
    careless = counts_by_speed(asked, groups, MODEL)
    assert (group_costs(asked, groups, careless, MODEL).memory_share[found.fits] > 1).any()


def test_who_waits_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By speed, steps are shorter and take fewer joules; a twin that forgets to wait sees neither.

    Energy of equal counts falls by what the fast class idles, once waiting in layers is free.
    """
    asked = job(2, 2)
    groups = some(asked)
    equal, by_speed = equal_counts(asked, groups), counts_by_speed(asked, groups, MODEL)
    ours = [group_costs(asked, groups, each, MODEL) for each in (equal, by_speed)]
    gains = by_speed.most[1] < equal.most[1]
    assert gains.any()
    assert (ours[1].step_s[0][gains] < ours[0].step_s[0][gains]).all()
    assert (ours[1].joules[0][gains] < ours[0].joules[0][gains]).all()
    plain = groups_module._layer_s
    late = [
        layer_time(each, MODEL.parameters)
        for each in groups_module._setups(asked, groups, equal.most)
    ]
    whole_s = groups_module._slowest_layer_s(late, 1.0)
    assert (whole_s >= np.maximum(*(plain(each, 1.0) for each in late))).all()
    monkeypatch.setattr(groups_module, "_slowest_layer_s", lambda layers, clock: np.minimum(
        *(plain(each, clock) for each in layers)))  # fmt: skip
    twin = group_costs(asked, groups, equal, MODEL)
    assert (twin.joules[0] < ours[0].joules[0]).all()


def test_capacity_is_the_rows_of_a_gpus_experts() -> None:
    """Rows of all GPUs of a group are what its tokens make, however experts are counted."""
    asked = job(2, 1)
    groups = expert_groups(asked, {})
    for found in (equal_counts(asked, groups), counts_by_speed(asked, groups, MODEL)):
        rows = rows_of_gpu(asked, groups, found.mean)
        total = sum(m * each for m, each in zip(groups.members, rows, strict=True))
        made = sum(
            m * np.asarray(each.micro_batch) * 2048 * 2 / (np.asarray(each.cp) * each.tp)
            for m, each in zip(groups.members, groups.layout, strict=True)
        )
        np.testing.assert_allclose(np.asarray(total), np.asarray(made))


def test_counts_by_speed_are_ranked_and_compared() -> None:
    """No counts by speed are slower than equal ones; the front is of both and of all other ways."""
    asked = replace(job(4, 4), global_batch=64)
    found = search_mixed(asked, MODEL)
    compared = found.compared
    assert compared is not None
    assert len(compared.clock)
    assert np.isfinite(compared.by_speed.step_s).all()
    assert (compared.by_speed.step_s <= compared.equal.step_s).all()
    spans = (found.experts[0] + found.experts[1]) > 0
    assert not (found.by_speed & ~spans).any()
    dense = search_mixed(replace(asked, shape=replace(SMALL, dense_layers=SMALL.layers)), MODEL)
    assert dense.compared is None
    groups, costed = cost_groups(asked, MODEL, {})
    every = np.concatenate([costs.step_s.ravel() for _, costs in costed])
    assert found.step_s.min() <= every.min()
    again = compare_counts(asked, groups, costed)
    np.testing.assert_array_equal(again.by_speed.step_s, compared.by_speed.step_s)
    assert set(found.clock.tolist()) <= set(CLOCKS)


def test_the_command_says_both_and_what_no_job_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Screen, JSON and ranking; a dense model has no such part, and two GPUs have no room."""
    asked = ["configs", "search", "--model", "qwen3-30b-a3b", "--batch", "96", "--seq-len", "4096"]
    assert main([*asked, "--gpus", "16xh100,8xa100"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "equal: h100 11, a100 10" in said
    assert "by speed: h100 14, a100 4" in said
    assert "no live job can do this yet" in said
    assert "counts by speed change the step of the fastest by -" in said
    assert main([*asked, "--gpus", "16xh100,8xa100", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    groups = answer["expert_groups"]
    assert groups["live_job"] is False
    assert groups["note"].startswith("no live job")
    for each in groups["compared"]:
        assert each["by_speed"]["fits"]
        assert each["by_speed"]["memory_share"] <= 1
        held = [m * e for m, e in zip(each["members"], each["by_speed"]["mean_experts"],
                                      strict=True)]  # fmt: skip
        assert sum(held) == pytest.approx(128)
    assert any(each["dealt"] == "experts" for each in answer["points"])
    assert main([*asked, "--gpus", "1xl40s,1xl40s"]) == 1
    assert "names one class twice" in capsys.readouterr().err
    assert main([*asked, "--gpus", "1xl40s,1xa100-40gb"]) == 0
    said = capsys.readouterr().out
    assert "fell to the rule fit into the memory of both, counts by speed" in said
    dense = ["configs", "search", "--model", "llama3-8b", "--batch", "96", "--json", "--gpus"]
    assert main([*dense, "8xh100,8xa100"]) == 0
    assert json.loads(capsys.readouterr().out)["expert_groups"] is None


def waited_watts(part: GpuPart) -> float:
    """What a GPU that waits draws, by its data sheet and the fitted shares."""
    above_idle = part.gpu.power_w - part.gpu.idle_w
    share = MODEL.shares
    return part.gpus * (part.gpu.idle_w + share.waiting * above_idle + share.node_w_per_gpu)


def twins_joules(asked: MixedJob, groups: ExpertGroups) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and joules of a step of GPUs that never wait for each other, without the rule."""
    counts = equal_counts(asked, groups).mean
    setups = groups_module._setups(asked, groups, counts)[0]
    energy = step_energy(setups, step_time(setups, MODEL.parameters), MODEL.shares, clock=CLOCKS[0])
    gpus = sum(part.gpus for part in asked.parts)
    step_s = np.asarray(energy.step_s)
    return step_s, gpus * np.asarray(energy.node_w) * step_s


def broken_bills(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Name what the joules of a step do not pay for.

    A second that all wait longer takes each GPU's waiting watts, and GPUs that never wait take
    their own joules only.
    """
    late_s, found = 7.0, set()
    for name, asked in (("mixed", job(2, 1)), ("alike", job(2, 2, TWIN))):
        groups = some(asked)
        if name == "alike":
            same = groups.layout[0].micro_batch == groups.layout[1].micro_batch
            whole = 6 % np.asarray(groups.layout[0].ep) == 0
            groups = take_groups(groups, np.flatnonzero(same & whole))
            assert len(groups.batches)
        counts = equal_counts(asked, groups)
        plain = group_costs(asked, groups, counts, MODEL)
        if name == "alike":
            step_s, joules = twins_joules(asked, groups)
            if not np.allclose(plain.joules[0], joules, rtol=1e-9):
                found.add("who does not wait")
            assert np.allclose(plain.step_s[0], step_s, rtol=1e-9)
        with monkeypatch.context() as patched:
            slowest = groups_module._slowest_s
            patched.setattr(
                groups_module, "_slowest_s", lambda *words, of=slowest: of(*words) + late_s
            )
            longer = group_costs(asked, groups, counts, MODEL)
        expected = late_s * sum(map(waited_watts, asked.parts))
        if not np.allclose(longer.joules - plain.joules, expected, rtol=1e-6):
            found.add("who waits")
    return found


BILLS: dict[str, tuple[str, str]] = {
    "twice": ("slowest - own_s)", "slowest - own_s) * 2"),
    "nothing": ("slowest - own_s)", "slowest - own_s) * 0"),
    "all of the step": ("slowest - own_s)", "slowest)"),
    "without what others take": ("slowest - own_s)", "-own_s)"),
    "not at its watts": ("waiting_w(part.gpu, model.shares) * (", "("),
    "at the first class's watts": ("waiting_w(part.gpu,", "waiting_w(job.parts[0].gpu,"),
    "not added": ("own_s + waiting_j)", "own_s)"),
    "only waiting": ("np.asarray(energy.node_w) * own_s + waiting_j", "waiting_j"),
}
"""Mistakes in the line that pays for waiting: what stands there, and what would."""


def test_a_second_that_all_wait_takes_each_gpus_waiting_watts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the data sheets, on a mixed group; and twins that never wait pay for nothing else."""
    assert broken_bills(monkeypatch) == set()


@pytest.mark.parametrize("mistake", list(BILLS))
def test_each_mistake_in_what_waiting_costs_is_found(
    monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    """The rule's own text with one mistake in it fails the check above."""
    text = inspect.getsource(group_costs)
    right, wrong = BILLS[mistake]
    assert text.count(right) == 1
    names = dict(vars(groups_module))
    exec(text.replace(right, wrong), names)
    # Globals of the twin are the module's, so that the check's patch reaches it.
    twin = FunctionType(names["group_costs"].__code__, vars(groups_module), "group_costs")
    monkeypatch.setitem(globals(), "group_costs", twin)
    assert broken_bills(monkeypatch)
