"""A layout refuses degrees that no mesh can have, and survives its own JSON."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.controller.journal.runs.frozen_catalogue import from_text, to_stored
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint
from wattmesh.reconfig.layout import Layout, Ranks

degrees = st.integers(min_value=1, max_value=4)


@given(pp=degrees, dp=degrees, cp=degrees, tp=degrees)
def test_world_size_is_the_product_of_the_axes(pp: int, dp: int, cp: int, tp: int) -> None:
    """Ep is carved out of the others and is no factor of the world size."""
    layout = Layout(pp=pp, dp_shard=dp, cp=cp, tp=tp, ep=dp)
    assert layout.world_size == pp * dp * cp * tp
    assert Layout.from_dict(layout.to_dict()) == layout


def test_an_ep_that_does_not_divide_is_refused_with_the_whole_formula() -> None:
    """The message holds every number a person needs to mend it."""
    with pytest.raises(InputInvalid, match=r"ep = 3 must divide .* = 2 \* 1 \* 2 = 4"):
        Layout(dp_shard=2, tp=2, ep=3)


@pytest.mark.parametrize("degree", [0, -1, 1.5, True, "2"])
def test_a_degree_that_is_no_whole_number_above_zero_is_refused(degree: object) -> None:
    """Also booleans, which Python counts as numbers."""
    with pytest.raises(InputInvalid, match="tp = "):
        Layout.from_dict({"tp": degree})


def test_an_unknown_key_is_refused_with_what_is_allowed() -> None:
    """A misspelt axis must not become a silent 1."""
    with pytest.raises(InputInvalid, match=r"unknown key 'dp'; allowed: .*dp_shard"):
        Layout.from_dict({"dp": 2})


def test_a_method_of_context_parallel_is_told_only_where_it_is_not_the_first() -> None:
    """Hooks, digests and journal rows of before know no such field."""
    assert "cp_method" not in Layout(cp=2).to_dict()
    ring = Layout(cp=2, cp_method="ring")
    assert ring.to_dict()["cp_method"] == "ring"
    assert Layout.from_dict(ring.to_dict()) == ring
    with pytest.raises(InputInvalid, match="cp_method = 'torus' is not one of gather, ring"):
        Layout.from_dict({"cp_method": "torus"})


def test_what_was_written_of_a_layout_before_it_had_a_method_is_as_it_was() -> None:
    """Messages, frozen catalogues and proofs: digests of before hold; one of another method not."""
    point = OperatingPoint(id="A", layout=Layout(cp=2), gpus=2, tokens_per_s=1.0, power_w=1.0)
    assert point.claim == "3e4a9aaa658f096d"  # as the version before computed it
    ring = replace(point, layout=Layout(cp=2, cp_method="ring"))
    assert ring.claim != point.claim
    for each in (point, ring):
        stored = to_stored(Catalogue(job="j", tokens_total=10, reference="A", points=(each,)))
        assert ("cp_method" in stored) == (each is ring)
        assert from_text(stored).points == (each,)


def test_a_bottleneck_is_told_only_where_there_is_one() -> None:
    """And makes another point of a layout: its digest is its own."""
    narrow = Layout(ep=2, dp_shard=2, ep_bottleneck=4)
    assert narrow.to_dict()["ep_bottleneck"] == 4
    assert "ep_bottleneck" not in Layout(ep=2, dp_shard=2).to_dict()
    assert Layout.from_dict(narrow.to_dict()) == narrow != Layout(ep=2, dp_shard=2)
    for wrong in (0, True, 2.0, "4"):
        with pytest.raises(InputInvalid, match="ep_bottleneck = "):
            Layout.from_dict({"ep_bottleneck": wrong})


def test_the_text_tells_layouts_of_equal_degrees_apart() -> None:
    """On a screen as in a log: a narrow point is not taken for the whole one."""
    assert str(Layout(dp_shard=2, ep=2)) == "dp2 ep2"
    assert str(Layout(micro_batch=2, recompute=True)) == "1 rank, micro_batch=2, recompute=True"
    others = [
        Layout(cp=2),
        Layout(cp=2, cp_method="ring"),
        Layout(cp=2, cp_layers="1 2"),
        Layout(cp=2, ep_bottleneck=4),
        Layout(cp=2, micro_batch=1),
        Layout(cp=2, recompute=True),
        Layout(cp=2, schedule="GPipe"),
    ]
    assert len({str(each) for each in others}) == len(others)


def test_another_bottleneck_than_the_references_is_another_function() -> None:
    """Whatever else differs is not."""
    whole, narrow = Layout(dp_shard=2, ep=2), Layout(dp_shard=2, ep=2, ep_bottleneck=4)
    assert "ep_bottleneck = 4" in narrow.other_function(whole)
    assert whole.other_function(narrow)
    assert not narrow.other_function(Layout(ep_bottleneck=4))
    assert not Layout(tp=2, recompute=True).other_function(whole)


def test_degrees_of_layers_are_read_and_held_to_cp() -> None:
    """In short or one by one; nothing that cp does not hold, and no list without end."""
    assert Layout(cp=4).cp_by_layer == ()
    assert Layout(cp=4, cp_layers="4 1x2 2").cp_by_layer == (4, 1, 1, 2)
    narrow = Layout(cp=2, cp_layers="1 2")
    assert Layout.from_dict(narrow.to_dict()) == narrow
    with pytest.raises(InputInvalid, match="'1 3': 3 must divide cp = 4"):
        Layout(cp=4, cp_layers="1 3")
    for wrong in ("0", "1  2", "1,2", "x2", "1x0", "-1", "1 " * 5000 + "1", "1x9999", "1\n", 4):
        with pytest.raises(InputInvalid, match="is not understood"):
            Layout.from_dict({"cp": 4, "cp_layers": wrong})


def test_short_names_leave_out_what_is_one() -> None:
    """Screens have little room."""
    assert str(Layout(dp_shard=2, tp=2)) == "dp2 tp2"
    assert str(Layout(pp=2, dp_shard=4, ep=2)) == "dp4 pp2 ep2"
    assert str(Layout()) == "1 rank"


def test_ranks_know_who_is_parked() -> None:
    """A parked process has no rank in the group."""
    assert Ranks(participants=(2, 0), global_rank=0).group_rank == 1
    parked = Ranks(participants=(2, 0), global_rank=1)
    assert not parked.taking_part
    assert parked.group_rank == -1


@pytest.mark.parametrize("participants", [(), (1, 1)])
def test_an_empty_or_repeating_rank_list_is_refused(participants: tuple[int, ...]) -> None:
    """A rank cannot take part twice."""
    with pytest.raises(InputInvalid):
        Ranks(participants=participants, global_rank=0)
