"""The space of layouts against loops that ask every rule one by one, and its Pareto front."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.controller.cost_model.fitted import shipped
from wattmesh.policies.hull import lower_chain
from wattmesh.policies.layout_search.search import megatron_like, search, undominated
from wattmesh.policies.layout_search.space import RULES, Job, broken_rules, space
from wattmesh.policies.parallelism.hardware import CLASSES
from wattmesh.policies.parallelism.presets import PRESETS

DEGREES = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "chunks", "zero", "recompute")

SMALL = replace(
    PRESETS["qwen3-30b-a3b"], layers=6, hidden=512, heads=8, kv_heads=4, experts=6, topk=2
)
JOBS = {
    "experts": Job(shape=SMALL, global_batch=24, seq_len=4096, gpus=12, gpu=CLASSES["h100"]),
    "dense": Job(
        shape=replace(SMALL, experts=0, topk=0, ffn=2048),
        global_batch=8,
        seq_len=2048,
        gpus=8,
        gpu=CLASSES["h100"],
    ),
    "no links": Job(shape=SMALL, global_batch=24, seq_len=4096, gpus=12, gpu=CLASSES["l40s"]),
}


def counted(job: Job) -> set[tuple[int, ...]]:  # noqa: C901 - as flat as its rules are
    """Every legal layout, by the rules of docs/parallelism.md in plain loops."""
    shape, found = job.shape, set[tuple[int, ...]]()
    for tp, pp, cp in itertools.product((1, 2, 4, 8), range(1, 13), (1, 2, 4, 8, 16, 32, 64)):
        dp, rest = divmod(job.gpus, tp * pp * cp)
        if rest or dp == 0 or shape.heads % tp or shape.layers % pp or tp > job.gpu.domain:
            continue
        if shape.kv_heads % tp and tp % shape.kv_heads:
            continue
        if cp > 1 and (job.seq_len / cp < 1024 or job.seq_len % (2 * cp)):
            continue
        if job.global_batch % dp:
            continue
        experts = int(shape.experts) or 1
        for ep in (each for each in range(1, experts + 1) if experts % each == 0):
            if (dp * cp * tp) % ep:
                continue
            for micro_batch, chunks in itertools.product((1, 2, 4, 8, 16), range(1, 7)):
                if job.global_batch % (dp * micro_batch):
                    continue
                batches = job.global_batch // (dp * micro_batch)
                if chunks > 1 and (pp == 1 or shape.layers % (pp * chunks) or batches % pp):
                    continue
                for zero, recompute in itertools.product(range(4), range(3)):
                    if (zero and dp * cp == 1) or (zero == 3 and pp > 1):
                        continue
                    found.add((tp, pp, dp, cp, ep, micro_batch, chunks, zero, recompute))
    return found


def listed(job: Job) -> list[tuple[int, ...]]:
    """The same by `space`."""
    columns = [np.asarray(getattr(space(job).layout, name)).astype(int) for name in DEGREES]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("name", JOBS)
def test_the_space_is_what_loops_count(name: str) -> None:
    """Every legal layout is there, once, and no other."""
    found = listed(JOBS[name])
    assert len(found) == len(set(found)) > 20
    assert set(found) == counted(JOBS[name])


def test_every_rule_takes_something_away() -> None:
    """No rule is idle: each takes a layout away in one of the jobs, or here."""
    odd = replace(JOBS["experts"], gpus=8, seq_len=1536, global_batch=20)
    odd = replace(odd, shape=replace(SMALL, heads=12, kv_heads=3))
    jobs = [*JOBS.values(), odd, replace(odd, shape=replace(SMALL, heads=6, kv_heads=6))]
    gone = {rule.sentence: 0 for rule in RULES}
    for job in jobs:
        for sentence, count in space(job).excluded.items():
            gone[sentence] += count
    # Only divisors of the experts are tried; the rule is for layouts that a person asks about.
    assert [sentence for sentence, count in gone.items() if count == 0] == [
        "ep divides the experts"
    ]


def test_a_layout_is_left_out_with_its_reasons() -> None:
    """Every broken rule is named; a legal layout breaks none."""
    job = JOBS["experts"]
    good = dict(zip(DEGREES, map(float, listed(job)[0]), strict=True))
    assert broken_rules(job, good) == []
    broken = broken_rules(job, good | {"tp": 3.0, "pp": 4.0})
    assert "tp divides the heads" in broken
    assert "pp divides the layers" in broken


points = st.lists(st.tuples(*[st.sampled_from([1.0, 2.0, 3.0, 4.0])] * 3), min_size=1, max_size=40)


@given(points)
def test_the_front_is_what_pairs_say(drawn: list[tuple[float, float, float]]) -> None:
    """Against every pair: an entry is kept where no other is as good in all and better in one."""
    columns = np.array(drawn)
    kept = set(undominated(*columns.T).tolist())
    for index, one in enumerate(columns):
        better = [
            (other <= one).all() and ((other < one).any() or place < index)
            for place, other in enumerate(columns)
        ]
        assert (index in kept) is (not any(better))


def test_a_long_front_is_found_in_parts() -> None:
    """More entries than are compared at once: the same front as without parts."""
    columns = np.random.default_rng(0).random((3000, 3)).round(2)
    kept = undominated(*columns.T)
    beaten = [
        bool(((columns <= one).all(axis=1) & (columns < one).any(axis=1)).any()) for one in columns
    ]
    assert {tuple(columns[index]) for index in kept} == {
        tuple(one) for one, gone in zip(columns, beaten, strict=True) if not gone
    }


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=12))
def test_the_hull_is_what_mixtures_say(drawn: list[tuple[int, int]]) -> None:
    """What is on the hull draws less than any mixture of two others at its speed."""
    speed, power = np.array(drawn, dtype=float).T
    chosen = lower_chain(speed.tolist(), power.tolist())
    on_hull = np.isin(np.arange(len(speed)), chosen)
    thrifty = (power == power.min()) & (speed == speed[power == power.min()].max())
    assert (thrifty & on_hull).sum() == 1
    for index in chosen:
        for left, right in itertools.product(range(len(speed)), repeat=2):
            if speed[left] < speed[index] < speed[right]:
                share = (speed[index] - speed[left]) / (speed[right] - speed[left])
                assert power[index] < power[left] + share * (power[right] - power[left])


def test_a_search_keeps_to_memory_and_is_beaten_by_nothing() -> None:
    """Of a real model: what is returned fits, is sorted by time, and no layout is left out."""
    job = Job(
        shape=PRESETS["llama3-8b"], global_batch=64, seq_len=8192, gpus=8, gpu=CLASSES["h100"]
    )
    found = search(job, megatron_like(job), shipped(), clocks=(1.0, 0.7))
    assert 0 < found.fitting < found.space.size
    assert (found.memory_bytes <= job.gpu.memory_bytes).all()
    assert (np.diff(found.step_s) >= 0).all()
    assert set(found.clock) == {1.0, 0.7}
    assert found.on_hull.any()
    beaten = undominated(found.step_s, found.j_per_token, found.memory_bytes)
    assert len(beaten) == len(found.which)


def test_nothing_fits_is_an_empty_search() -> None:
    """A model that no GPU holds gives an empty front, not an error."""
    job = Job(
        shape=PRESETS["llama3.1-405b"], global_batch=8, seq_len=8192, gpus=2, gpu=CLASSES["l40s"]
    )
    found = search(job, megatron_like(job), shipped())
    assert (found.fitting, len(found.which)) == (0, 0)
    assert found.space.size > 0
