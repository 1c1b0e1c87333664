"""A placement keeps room and time, is never worse than by number, and near to the best there is."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placement.exact import optimum
from tests.experts.cases import best_of_all, drawn, gpus
from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.placement import exchange
from wattmesh.policies.experts.placement.affinity import count_choices
from wattmesh.policies.experts.placement.exchange import LayerProblem
from wattmesh.policies.experts.placement.objective import cost, loads_on_gpus
from wattmesh.policies.experts.placement.problem import (
    Counts,
    PlacementProblem,
    checked,
    contiguous,
)
from wattmesh.policies.experts.placement.replicas import replicate
from wattmesh.policies.experts.placement.search import limits, place


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 999),
    experts=st.integers(2, 14),
    count=st.integers(1, 5),
    layers=st.integers(1, 2),
    slow_and_room=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_a_placement_keeps_room_and_time(
    seed: int, experts: int, count: int, layers: int, slow_and_room: tuple[int, int]
) -> None:
    """Whatever the numbers of experts and GPUs; by number, late or not, never costs less."""
    slow, room = slow_and_room
    problem = drawn(experts, count, seed=seed, layers=layers, slow=min(slow, count), room=room)
    placed, plain = checked(problem, place(problem)), contiguous(problem)
    seconds_LG = loads_on_gpus(problem, placed) / problem.speeds_G()
    in_time = bool((seconds_LG.max(axis=1) <= limits(problem) * (1 + 1e-12)).all())
    assert in_time or np.array_equal(placed, plain)
    assert cost(problem, placed).objective_j <= cost(problem, plain).objective_j
    assert np.array_equal(placed, place(problem))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("experts", "count", "slow", "room"), [(6, 3, 0, 0), (7, 3, 1, 1)])
def test_small_problems_are_solved_within_3_percent(
    seed: int, experts: int, count: int, slow: int, room: int
) -> None:
    """Of the best of all placements; and none is better, so the oracle and the search agree."""
    problem = drawn(experts, count, seed=seed, slow=slow, room=room)
    best = best_of_all(problem)
    assert best * (1 - 1e-9) <= cost(problem, place(problem)).objective_j <= best * 1.03


@pytest.mark.parametrize(("experts", "slow", "layers"), [(6, 0, 1), (6, 1, 1), (4, 0, 2)])
def test_the_integer_program_means_the_same(experts: int, slow: int, layers: int) -> None:
    """Its optimum costs what our own count of it says, and on one layer is the best of all."""
    problem = drawn(experts, 2, seed=5, slow=slow, layers=layers)
    best = optimum(problem)
    assert best.proven
    assert best.gpu_LX is not None
    checked(problem, best.gpu_LX)
    assert best.objective_j == pytest.approx(best.bound_j, rel=3e-4)
    if layers == 1:
        assert best.objective_j == pytest.approx(best_of_all(problem), rel=2e-4)
    assert cost(problem, place(problem)).objective_j <= best.bound_j * 1.03


def test_experts_of_one_topic_go_to_one_node() -> None:
    """Two topics whose experts alternate: by number every pair is cut, placed none."""
    even = np.array([[0, 2], [1, 3]] * 50)
    problem = PlacementProblem(
        counts=count_choices([even], 4), gpus=gpus(4), slots=(1,) * 4, crossing_j=1.0
    )
    assert cost(problem, contiguous(problem)).crossings == 100
    assert cost(problem, place(problem)).crossings == 0


def test_experts_of_following_layers_go_to_one_node() -> None:
    """Where tokens stay at their expert's node, the affinity of two layers counts."""
    first = np.array([[0], [1]] * 50)
    problem = PlacementProblem(
        counts=count_choices([first, 1 - first], 2),
        gpus=gpus(2, per_node=1),
        slots=(1, 1),
        crossing_j=1.0,
    )
    assert cost(problem, contiguous(problem)).crossings == 100
    assert cost(problem, place(problem)).crossings == 0


def test_hot_experts_go_to_cheap_gpus_as_far_as_time_allows() -> None:
    """Without traffic the joules of rows fall, and nobody is late for it."""
    problem = drawn(12, 4, seed=3, slow=2, room=3, crossing_j=0.0)
    ours, plain = cost(problem, place(problem)), cost(problem, contiguous(problem))
    assert ours.layer_energy_j < 0.9 * plain.layer_energy_j
    assert ours.worst_load <= 1.1 * (1 + 1e-9)


def test_a_search_that_forgot_the_pair_itself_would_be_noticed() -> None:
    """Sabotaged twin of the exchange's gain: the edge between two exchanged units is counted right.

    The change that the formula predicts is the change of the cost, for every pair.
    """
    draw = np.random.default_rng(2)
    together = draw.integers(0, 9, (6, 6)).astype(float)
    together = together + together.T
    np.fill_diagonal(together, 0)
    distance = np.array([[0, 1, 5], [1, 0, 5], [5, 5, 0]], dtype=float)
    layer = LayerProblem(
        loads_S=draw.random(6),
        price_SG=draw.random((6, 3)),
        together_SS=together,
        distance_GG=distance,
        speeds_G=np.ones(3),
        limit_s=99.0,
        idle_w=0.0,
    )
    at_S = np.array([0, 0, 1, 1, 2, 2])
    total = together @ distance[at_S] + layer.price_SG
    for a, b in ((0, 2), (1, 5), (3, 4)):
        swapped = at_S.copy()
        swapped[[a, b]] = at_S[[b, a]]
        change = total[a, at_S[b]] + total[b, at_S[a]] - total[a, at_S[a]] - total[b, at_S[b]]
        own = 2 * together[a, b] * distance[at_S[a], at_S[b]]
        true = layer.cost(swapped) - layer.cost(at_S)
        assert change + own == pytest.approx(true)
        assert own == 0 or change != pytest.approx(true)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_waiting_is_what_an_exchange_is_judged_by(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the slowest GPU after any exchange is predicted right, and costs idle power.

    A twin that leaves out what the other GPUs take predicts another time somewhere.
    """
    draw = np.random.default_rng(count)
    at_S = np.arange(12) % count
    layer = LayerProblem(
        loads_S=draw.random(12),
        price_SG=np.zeros((12, count)),
        together_SS=np.zeros((12, 12)),
        distance_GG=np.zeros((count, count)),
        speeds_G=draw.uniform(0.5, 2.0, count),
        limit_s=99.0,
        idle_w=70.0,
    )

    def wrong() -> int:
        seconds_G = layer.seconds_G(at_S)
        ends_SS = exchange._ends(layer, at_S, seconds_G)
        others_SS = exchange._others(seconds_G, at_S)
        found = 0
        for a, b in itertools.combinations(range(12), 2):
            if at_S[a] != at_S[b]:
                swapped = at_S.copy()
                swapped[[a, b]] = at_S[[b, a]]
                ours = max(ends_SS[a, b], ends_SS[b, a], others_SS[a, b])
                found += ours != pytest.approx(float(layer.seconds_G(swapped).max()))
        return found

    assert wrong() == 0
    better = exchange.exchanged(layer, at_S)
    assert layer.cost(better) == pytest.approx(70 * float(layer.seconds_G(better).max()))
    assert layer.cost(better) < layer.cost(at_S)
    monkeypatch.setattr(exchange, "_others", lambda seconds_G, at: np.zeros((len(at),) * 2))
    assert (wrong() > 0) is (count > 2)


@pytest.mark.parametrize("seed", range(4))
def test_two_gpus_exchange_all_they_hold_where_that_is_best(seed: int) -> None:
    """The pair that is chosen is the best of all in time, by the cost itself; else none is."""
    draw = np.random.default_rng(seed)
    together = np.triu(draw.integers(0, 9, (12, 12)).astype(float), 1)
    distance = np.array([[0, 1, 5, 5], [1, 0, 5, 5], [5, 5, 0, 1], [5, 5, 1, 0]], dtype=float)
    layer = LayerProblem(
        loads_S=draw.random(12),
        price_SG=draw.random((12, 4)) * 9,
        together_SS=together + together.T,
        distance_GG=distance,
        speeds_G=np.array([1.0, 1.0, 0.7, 0.7]),
        limit_s=3.0,
        idle_w=20.0,
    )
    at_S = draw.permutation(np.arange(12) % 4)
    while True:
        others = []
        for a, b in itertools.combinations(range(4), 2):
            swapped = np.where(at_S == a, b, np.where(at_S == b, a, at_S))
            if layer.seconds_G(swapped)[[a, b]].max() <= layer.limit_s:
                others.append(layer.cost(swapped))
        found = exchange._with_gpus_exchanged(layer, at_S, 1e-9)
        if found is None:
            assert min(others, default=np.inf) >= layer.cost(at_S) - 1e-6
            return
        assert layer.cost(found) == pytest.approx(min(others))
        assert layer.cost(found) < layer.cost(at_S)
        at_S = found


def test_where_units_cannot_pass_each_other_whole_gpus_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two placements are in time, and no exchange of two units leads from one to the other.

    A twin that exchanges only units is caught: it keeps the dearer one.
    """
    problem = replace(drawn(7, 3, seed=3, slow=2, room=1, crossing_j=5.0), tolerance=0.0)
    assert cost(problem, place(problem)).objective_j == pytest.approx(best_of_all(problem))
    monkeypatch.setattr(exchange, "_with_gpus_exchanged", lambda *_: None)
    assert cost(problem, place(problem)).objective_j > 1.05 * best_of_all(problem)


def test_balance_is_traded_against_traffic_by_what_each_costs() -> None:
    """Two pairs share tokens; keeping them together makes one GPU late by a twentieth.

    While waiting costs more than the crossings, each GPU gets half; where it costs less, none is
    cut. A search that forgets waiting would cut none in both.
    """
    loads = np.array([[210.0, 210.0, 190.0, 190.0]])
    together = np.zeros((1, 4, 4))
    together[0, 0, 1] = together[0, 1, 0] = together[0, 2, 3] = together[0, 3, 2] = 10.0
    for crossing_j, cut in ((0.05, 20.0), (0.5, 0.0)):
        problem = PlacementProblem(
            counts=_counts(loads_LX=loads, together_LXX=together, onward_LXX=np.zeros((0, 4, 4))),
            gpus=gpus(2, per_node=1),
            slots=(2, 2),
            crossing_j=crossing_j,
        )
        placed = cost(problem, place(problem))
        assert placed.crossings == cut
        assert placed.layer_s == (0.4 if cut else 0.42)
        best = optimum(problem)
        assert best.proven
        assert best.objective_j == pytest.approx(placed.objective_j)


def test_copies_of_hot_experts_save_energy_and_lose_no_row() -> None:
    """One expert has most rows: its copies bring the slowest GPU down, the cheapest first."""
    chosen = np.array([[0]] * 70 + [[1], [2], [3]] * 10)
    problem = PlacementProblem(
        counts=count_choices([chosen], 4), gpus=gpus(4, slow=1), slots=(1,) * 4, crossing_j=0.0
    )
    placed = contiguous(problem)
    none, some = (replicate(problem, placed, (each,) * 4) for each in (0, 1))
    assert none.copies == 0
    assert np.array_equal(none.held_LXG.argmax(axis=2), placed)
    assert some.copies == 2
    assert not some.held_LXG[0, 0, 3], "the slow GPU is the dearest and gets no copy"
    np.testing.assert_allclose(some.share_LXG.sum(axis=2), 1.0, rtol=1e-12)
    assert not (some.share_LXG[~some.held_LXG] != 0).any()
    loads = problem.counts.loads_LX[0]
    assert (loads @ some.share_LXG[0]).max() < 0.6 * (loads @ none.share_LXG[0]).max()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), spare=st.integers(0, 2), slow=st.integers(0, 2))
def test_copies_never_cost_energy(seed: int, spare: int, slow: int) -> None:
    """By the model that is reported, on any problem."""
    problem = drawn(8, 3, seed=seed, slow=slow)
    placed = place(problem)
    found = replicate(problem, placed, (spare,) * 3)
    loads_LG = np.einsum("lx,lxg->lg", problem.counts.loads_LX, found.share_LXG)
    np.testing.assert_allclose(loads_LG.sum(axis=1), problem.counts.loads_LX.sum(axis=1))
    copied = loads_LG @ problem.joules_G() + (loads_LG / problem.speeds_G()).max(axis=1) * sum(
        each.idle_w for each in problem.gpus
    )
    assert copied.sum() <= cost(problem, placed).layer_energy_j * (1 + 1e-9)
    assert (found.held_LXG.sum(axis=(0, 1)) <= np.array([3 + spare] * 3)).all()


def _counts(**other: Any) -> Counts:
    shape = {
        "loads_LX": np.ones((2, 4)),
        "together_LXX": np.zeros((2, 4, 4)),
        "onward_LXX": np.zeros((1, 4, 4)),
    }
    return Counts(**(shape | other))


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"loads_LX": np.full((2, 4), np.nan)}, "negative, not finite or above"),
        ({"loads_LX": np.full((2, 4), 1e308)}, "negative, not finite or above"),
        ({"loads_LX": -np.ones((2, 4))}, "negative, not finite or above"),
        ({"loads_LX": np.ones(4)}, "shape"),
        ({"loads_LX": np.ones((2, 0))}, "shape"),
        ({"onward_LXX": np.zeros((2, 4, 4))}, "onward has the shape"),
        ({"together_LXX": np.triu(np.ones((2, 4, 4)), 1)}, "not symmetric"),
    ],
)
def test_counts_that_cannot_be_are_refused(other: dict[str, Any], sentence: str) -> None:
    """With what is wrong."""
    with pytest.raises(InputInvalid, match=sentence):
        _counts(**other)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"slots": (1, 1)}, "4 experts of a layer do not fit into 2 slots"),
        ({"slots": (4,)}, "1 slot counts were given for 2 GPUs"),
        ({"slots": (5, -1)}, "do not fit"),
        ({"crossing_j": float("nan")}, "a crossing costs nan"),
        ({"near_crossing_j": 2.0}, "the second the smaller"),
        ({"tolerance": -0.1}, "tolerance"),
    ],
)
def test_problems_that_cannot_be_are_refused(other: dict[str, Any], sentence: str) -> None:
    """An expert count that does not divide is none of them; too few slots are."""
    right = PlacementProblem(counts=_counts(), gpus=gpus(2), slots=(3, 2), crossing_j=1.0)
    assert place(right).shape == (2, 4)
    with pytest.raises(InputInvalid, match=sentence):
        replace(right, **other)


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        ([[0, 0, 1, 1]], "shape"),
        ([[0, 0, 1, 2]] * 2, "none of the 2"),
        ([[0, 0, 0, 0]] * 2, "would hold 4 experts, 2 fit"),
        ([[0.0, 0, 1, 1]] * 2, "whole numbers"),
    ],
)
def test_placements_of_another_problem_are_refused(placement: Any, sentence: str) -> None:
    """Before anybody moves an expert by them."""
    problem = PlacementProblem(counts=_counts(), gpus=gpus(2), slots=(2, 2), crossing_j=1.0)
    with pytest.raises(InputInvalid, match=sentence):
        checked(problem, placement)


def test_choices_are_counted_by_hand() -> None:
    """Three tokens, two layers: loads, pairs, and who follows whom."""
    found = count_choices(
        [np.array([[0, 1], [0, 2], [1, 0]]), np.array([[2, 1], [2, 0], [2, 1]])], 3
    )
    assert found.loads_LX.tolist() == [[3, 2, 1], [1, 2, 3]]
    assert found.together_LXX[0].tolist() == [[0, 2, 1], [2, 0, 0], [1, 0, 0]]
    assert found.onward_LXX[0].tolist() == [[1, 2, 3], [0, 2, 2], [1, 0, 1]]
    with pytest.raises(InputInvalid, match="none of the 3"):
        count_choices([np.array([[3]])], 3)
    with pytest.raises(InputInvalid, match="different numbers of tokens"):
        count_choices([np.array([[1]]), np.array([[1], [2]])], 3)


def test_a_layer_without_rows_is_placed() -> None:
    """Nobody chose it: any place will do, and nothing divides by its load."""
    problem = PlacementProblem(
        counts=_counts(loads_LX=np.zeros((2, 4))), gpus=gpus(2), slots=(2, 2), crossing_j=1.0
    )
    assert cost(problem, checked(problem, place(problem))).worst_load == 1.0
    assert replicate(problem, place(problem), (1, 1)).copies == 0
