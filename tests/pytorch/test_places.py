"""Where ranks stand, who has which stage, who holds which positions."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import get_schedule_class

from wattmesh.integrations.pytorch.context_parallel.positions import head_tail
from wattmesh.integrations.pytorch.meshes import MeshCoordinate, context_ranks
from wattmesh.integrations.pytorch.pipeline import (
    STAGES_PER_RANK,
    layers_of,
    rank_of,
    schedule_problem,
    stage_count,
    stages_of,
)
from wattmesh.reconfig.layout import AXES, SCHEDULES, Layout

degrees = st.integers(1, 3)
layouts = st.builds(
    Layout,
    pp=degrees,
    dp_replicate=degrees,
    dp_shard=degrees,
    cp=degrees,
    tp=degrees,
    schedule=st.sampled_from(SCHEDULES),
)


@given(layouts)
def test_coordinates_number_the_ranks_row_by_row(layout: Layout) -> None:
    """Rank order is that of a row-major array over the axes, outermost first."""
    shape = [getattr(layout, axis) for axis in AXES]
    grid = torch.arange(layout.world_size).reshape(shape)
    for rank in range(layout.world_size):
        place = MeshCoordinate.of(layout, rank)
        assert grid[tuple(getattr(place, axis) for axis in AXES)] == rank


@given(layouts)
def test_ranks_that_share_sequences_differ_in_cp_alone(layout: Layout) -> None:
    """Every rank is in one context group, in the order of its cp coordinate."""
    groups = context_ranks(layout)
    assert sorted(itertools.chain(*groups)) == list(range(layout.world_size))
    for group in groups:
        places = [MeshCoordinate.of(layout, rank) for rank in group]
        assert [place.cp for place in places] == list(range(layout.cp))
        assert len({(p.pp, p.dp_replicate, p.dp_shard, p.tp) for p in places}) == 1


@given(layouts)
def test_every_stage_is_on_one_rank_and_every_layer_in_one_stage(layout: Layout) -> None:
    """Stages are dealt completely, whatever the schedule."""
    dealt = [stage for rank in range(layout.pp) for stage in stages_of(layout, rank)]
    count = stage_count(layout)
    assert sorted(dealt) == list(range(count))
    assert all(stage in stages_of(layout, rank_of(layout, stage)) for stage in range(count))
    layers = [layer for stage in range(count) for layer in layers_of(stage, count, 2 * count)]
    assert layers == list(range(2 * count))


def test_a_v_schedule_begins_and_ends_on_the_first_rank() -> None:
    """As torch's ZBVZeroBubble wants it: down the ranks and up again."""
    layout = Layout(pp=3, schedule="ZBVZeroBubble")
    assert [stages_of(layout, rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_of_a_layout_is_one_of_torchs(schedule: str) -> None:
    """A name that a layout accepts can be run."""
    assert get_schedule_class(schedule).__name__ == f"Schedule{schedule}"
    assert schedule in STAGES_PER_RANK


@pytest.mark.parametrize(
    ("layout", "microbatches", "words"),
    [
        (Layout(pp=4), 3, "cannot fill pp = 4"),
        (Layout(pp=2, schedule="Interleaved1F1B"), 5, "not a whole number of rounds"),
        (Layout(pp=2, schedule="Interleaved1F1B"), 4, ""),
        (Layout(pp=2, schedule="InterleavedZeroBubble"), 5, "rounds of 2 (InterleavedZeroBubble)"),
        (Layout(pp=2, schedule="ZBVZeroBubble"), 3, ""),
        (Layout(), 1, ""),
    ],
)
def test_microbatches_that_a_schedule_cannot_run_are_named(
    layout: Layout, microbatches: int, words: str
) -> None:
    """A problem is a sentence; none is empty."""
    found = schedule_problem(layout, microbatches)
    assert words in found
    assert bool(words) == bool(found)


@given(ranks=st.integers(1, 5), piece=st.integers(1, 4))
def test_every_position_is_held_once_and_work_is_even(ranks: int, piece: int) -> None:
    """Under a causal mask each rank's positions see equally many keys."""
    length = 2 * ranks * piece
    held = [head_tail(length, ranks, rank) for rank in range(ranks)]
    assert torch.equal(torch.cat(held).sort().values, torch.arange(length))
    assert len({int((each + 1).sum()) for each in held}) == 1
