"""Boxes, rules and the cover proof agree with counting elements one by one."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.universal.oracle import SHAPES, Cut, covers_once, cuts, elements, stored
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.index import cover, rules
from wattmesh.reconfig.universal.index.box import Box, Shape, flat_boxes, row_major
from wattmesh.reconfig.universal.index.index import Index, Segment, TensorEntry, build
from wattmesh.reconfig.universal.index.placing import logical_shape, place
from wattmesh.reconfig.universal.index.rules import (
    ExpertStack,
    Replicate,
    Rule,
    Shard,
    SubBlocks,
    VocabPad,
)


@given(st.data(), SHAPES)
def test_a_flat_range_is_its_boxes_in_order(data: st.DataObject, shape: Shape) -> None:
    """Few boxes, each contiguous, that give the range back element by element."""
    count = int(np.prod(shape, dtype=np.int64))
    begin = data.draw(st.integers(0, count))
    end = data.draw(st.integers(begin, count))
    boxes = flat_boxes(shape, begin, end)
    assert list(itertools.chain(*(elements(box, shape) for box in boxes))) == [*range(begin, end)]
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


@given(st.data(), SHAPES)
def test_every_tiling_is_proven(data: st.DataObject, shape: Shape) -> None:
    """Whatever the cut, and with any of its boxes stored again as a replica."""
    cut = data.draw(cuts(shape))
    again = data.draw(st.lists(st.sampled_from(cut), max_size=3))
    cover.prove(stored(shape, (*cut, *again)).index)


@given(st.data(), SHAPES.filter(lambda shape: np.prod(shape, dtype=np.int64) > 1))
def test_a_moved_grown_or_lost_box_is_refused(data: st.DataObject, shape: Shape) -> None:
    """Sabotaged twin: spoil one box of a tiling; the proof agrees with counting."""
    cut = list(data.draw(cuts(shape)))
    at = data.draw(st.integers(0, len(cut) - 1))
    box = cut.pop(at)
    how = data.draw(st.sampled_from(["lose", "move", "grow"]))
    dim = data.draw(st.integers(0, len(shape) - 1))
    by = data.draw(st.sampled_from([-1, 1]))
    start, size = list(box.start), list(box.shape)
    if how == "move":
        start[dim] += by
    if how == "grow":
        size[dim] += by
    spoilt = Box(tuple(start), tuple(size))
    boxes = cut if how == "lose" else [*cut, spoilt]
    inside = how == "lose" or spoilt.within(shape)
    good = inside and covers_once(tuple(each for each in boxes if each.count), shape)
    index = _index(shape, tuple(boxes))
    if good:
        cover.prove(index)
    else:
        with pytest.raises(InputInvalid, match=r"^w \(param\): "):
            cover.prove(index)


def _index(shape: Shape, boxes: Cut) -> Index:
    entry = TensorEntry(name="w", state="param", dtype="float32", shape=shape)
    segments = [Segment(entry=entry.key, file="f", offset=0, box=box) for box in boxes]
    return build([entry], segments)


@given(st.integers(1, 40), st.lists(st.integers(0, 40), max_size=6), st.integers(0, 3))
def test_flat_ranges_are_proven_together(count: int, edges: list[int], spoil: int) -> None:
    """Ranges end to end are a cover; one range short, long or missing is not."""
    index = stored((count,), (), tuple(edges)).index
    cover.prove(index)
    shape = index.segments.shape.copy()
    at = spoil % len(shape)
    shape[at, 0] += 1
    with pytest.raises(InputInvalid, match=r"^w \(param\): elements"):
        cover.prove(replace(index, segments=replace(index.segments, shape=shape)))
    fewer = index.segments.take(np.arange(len(shape)) != at)
    with pytest.raises(InputInvalid, match=r"^w \(param\): elements"):
        cover.prove(replace(index, segments=fewer))


def test_flat_ranges_of_wide_tensors_need_one_column() -> None:
    """Columns are as wide as the widest box, which may be narrower than every tensor."""
    index = stored((3, 4, 5), (), (7, 30)).index
    segments = index.segments
    narrow = {name: getattr(segments, name)[:, :1] for name in ("start", "shape", "strides")}
    cover.prove(replace(index, segments=replace(segments, **narrow)))


def test_a_refusal_names_the_tensor_and_the_box() -> None:
    """A gap names what is nowhere, an overlap both boxes."""
    halves = (Box((0, 0), (2, 4)), Box((2, 0), (2, 4)))
    with pytest.raises(InputInvalid, match=r"w \(param\): \[2:4, 0:4\] is missing"):
        cover.prove(_index((4, 4), halves[:1]))
    with pytest.raises(InputInvalid, match=r"\[0:2, 0:4\] and \[1:3, 0:4\] overlap"):
        cover.prove(_index((4, 4), (*halves[:1], Box((1, 0), (2, 4)), *halves[1:])))
    with pytest.raises(InputInvalid, match=r"\[3:5, 0:4\] is outside"):
        cover.prove(_index((4, 4), (*halves, Box((3, 0), (2, 4)))))


RULES: tuple[tuple[Rule, int, list[int]], ...] = (
    (Replicate(), 4, [0, 1, 2, 3]),
    (Shard(0), 4, [0, 1, 2, 3]),
    (SubBlocks(0, ((2, 1), (2, 1))), 6, [0, 1, 3, 4, 2, 5]),
    (SubBlocks(0, ((3, 1), (1, 1))), 6, [0, 1, 2, 4, 3, 5]),
    (VocabPad(0, 3), 5, [0, 1, 2]),
    (ExpertStack(0, (2, 0, 3, 1)), 4, [1, 3, 0, 2]),
)


@pytest.mark.parametrize(("rule", "stored_size", "order"), RULES)
@pytest.mark.parametrize("flat", [False, True])
def test_a_rule_puts_stored_rows_where_they_belong(
    rule: Rule, stored_size: int, order: list[int], flat: bool
) -> None:
    """`order[i]` is the stored row that the logical row i comes from."""
    whole = Box((0,), (stored_size * 3,)) if flat else Box.whole((stored_size, 3))
    segment = Segment(entry=("w", "param"), file="f", offset=100, box=whole, flat=flat)
    found = {}
    for part in place(rule, segment, (stored_size, 3), 4):
        if part.flat:
            found = {(row, 0): 100 + row * 12 for row in range(stored_size)}
            break
        strides = part.strides or row_major(part.box.shape)
        for row in range(part.box.shape[0]):
            at = part.box.start[0] + row, part.box.start[1]
            found[at] = part.offset + row * strides[0] * 4
    assert found == {(row, 0): 100 + source * 12 for row, source in enumerate(order)}
    assert logical_shape(rule, (stored_size, 3)) == (len(order), 3)


@pytest.mark.parametrize("rule", [rule for rule, _, _ in RULES])
def test_rules_survive_json(rule: Rule) -> None:
    """What is written reads back equal."""
    assert rules.from_json(rules.to_json(rule)) == rule


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "magic"}, "rule kind 'magic' is not one of"),
        ({"kind": "shard", "width": 3}, "rule shard has no 'width'"),
        ({"kind": "shard", "dim": "0"}, "'0' is not"),
        ({"kind": "sub_blocks", "widths": [[1, 2], [1]]}, "the same number of blocks"),
        ({"kind": "sub_blocks", "widths": []}, "the same number"),
    ],
)
def test_a_wrong_rule_is_one_sentence(data: dict[str, object], message: str) -> None:
    """Unknown kinds, unknown fields, values of the wrong type."""
    with pytest.raises(InputInvalid, match=message):
        rules.from_json(data)


def test_a_rule_that_does_not_fit_is_refused() -> None:
    """Sizes are checked against what was stored, dims against the tensor."""
    for rule, message in (
        (SubBlocks(0, ((2, 1),)), "add up to 3, the stored dim 0 has 4"),
        (VocabPad(0, 5), "between 1 and the stored dim 0's 4"),
        (ExpertStack(0, (0, 1, 1, 2)), "no permutation of the 4"),
        (VocabPad(3, 1), "dim 3 is none of a tensor"),
    ):
        with pytest.raises(InputInvalid, match=message):
            logical_shape(rule, (4, 2))


@settings(max_examples=50)
@given(st.data())
def test_ranks_of_fused_blocks_give_the_unsharded_tensor(data: st.DataObject) -> None:
    """Shard every block over ranks, store rank after rank: sub_blocks undoes it."""
    ranks = data.draw(st.integers(1, 4))
    blocks = data.draw(st.integers(1, 3))
    width = [[data.draw(st.integers(0, 3)) for _ in range(blocks)] for _ in range(ranks)]
    width[0][0] += 1
    logical = [(block, i) for block in range(blocks) for i in range(sum(r[block] for r in width))]
    next_of = [0] * blocks
    rows = []
    for rank in width:
        for block, count in enumerate(rank):
            rows += [(block, next_of[block] + i) for i in range(count)]
            next_of[block] += count
    rule = SubBlocks(0, tuple(map(tuple, width)))
    moved: dict[int, tuple[int, int]] = {}
    for run in rule.runs(len(rows)):
        for i in range(run.length):
            moved[run.logical + i] = rows[run.stored + i]
    assert [moved[at] for at in range(len(rows))] == logical
