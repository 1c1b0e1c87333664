"""The tour makes every switch once, and only points between which every switch holds stand."""

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.controller.profile.job import Candidate
from wattmesh.controller.validate.pairs import Apart, standing, tour
from wattmesh.controller.validate.results import PairRow, ValidationProgress
from wattmesh.reconfig.layout import Layout

IDS = ["B", "C", "D", "E"]
ALL = set(permutations(IDS, 2))


def rows(*, faulty: set[tuple[str, str]], unmade: set[tuple[str, str]]) -> list[PairRow]:
    """Make all pairs, some of them faulty, some not made."""
    return [
        PairRow(
            origin=one, target=other, ok=(one, other) not in faulty, sentence="3 tensors differ"
        )
        for one, other in ALL - unmade
    ]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_whole_tour_makes_every_switch_exactly_once(count: int) -> None:
    """And none stays where it is."""
    ids = IDS[:count]
    walk = tour(ids, list(permutations(ids, 2)))
    made = list(pairwise(walk))
    assert sorted(made) == sorted(permutations(ids, 2))


@given(st.sets(st.sampled_from(sorted(ALL)), min_size=1))
def test_what_is_left_of_a_tour_is_made_with_few_others(missing: set[tuple[str, str]]) -> None:
    """At most one switch on the way to each missing one; never from a point to itself."""
    walk = tour(IDS, missing)
    made = list(pairwise(walk))
    assert missing <= set(made)
    assert len(made) < 2 * len(missing)
    assert all(one != other for one, other in made)


@given(st.sets(st.sampled_from(sorted(ALL))), st.sets(st.sampled_from(sorted(ALL))))
def test_no_two_points_stand_between_which_a_switch_failed_or_was_not_made(
    faulty: set[tuple[str, str]], unmade: set[tuple[str, str]]
) -> None:
    """Each one that falls is told a fault of its own, and none falls needlessly at the end."""
    kept, told = standing(IDS, rows(faulty=faulty, unmade=unmade))
    wrong = faulty | unmade
    assert not wrong & set(permutations(kept, 2))
    assert sorted([*kept, *told]) == IDS
    for point, why in told.items():
        assert any(
            f"from {one} to {other} " in why for one, other in wrong if point in (one, other)
        )


def test_one_faulty_switch_costs_one_point_and_no_more() -> None:
    """The later one of the two; the oracle tries all choices."""
    found = rows(faulty={("B", "E")}, unmade=set())
    kept, told = standing(IDS, found)
    assert kept == ["B", "C", "D"]
    assert told == {"E": "the switch from B to E failed: 3 tensors differ"}
    largest = max(
        (each for size in range(5) for each in combinations(IDS, size)
         if ("B", "E") not in set(permutations(each, 2))),
        key=len,
    )  # fmt: skip
    assert len(kept) == len(largest)


def test_a_point_that_breaks_many_switches_falls_alone() -> None:
    """The others would each have one fault, and keep their places."""
    faulty = {("C", each) for each in "BDE"} | {("B", "C")}
    kept, told = standing(IDS, rows(faulty=faulty, unmade=set()))
    assert (kept, list(told)) == (["B", "D", "E"], ["C"])


def test_points_of_one_layout_and_of_the_reference_s_need_no_switch_of_their_own() -> None:
    """Another clock is no switch of layout."""
    points = [
        Candidate(id="A", layout=Layout(dp_shard=2)),
        Candidate(id="slow", layout=Layout(dp_shard=2), clock_mhz=900),
        Candidate(id="B", layout=Layout()),
        Candidate(id="B-slow", layout=Layout(), clock_mhz=900),
        Candidate(id="C", layout=Layout(tp=2)),
    ]
    found = Apart.of(points, {each.id for each in points})
    assert found.ids == ["B", "C"]
    one = PairRow(origin="B", target="C", ok=True, sentence="")
    assert found.missing(ValidationProgress(digest="d", pairs=(one,))) == [("C", "B")]
    assert (
        Apart.of(points, {"A", "B", "slow", "B-slow"}).missing(ValidationProgress(digest="d")) == []
    )
