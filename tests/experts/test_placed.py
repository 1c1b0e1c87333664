"""A placement of experts: what fits, what is stored, what is computed; without any process."""

import random
import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.hook.reporting.test_orders import GOOD, HERE
from wattmesh.controller.cycle.observe import _records
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.expert_parallel import ExpertParallel
from wattmesh.integrations.pytorch.gradients import expert_squares
from wattmesh.reconfig import placement
from wattmesh.reconfig.checkpoint.digest import pieces_of
from wattmesh.reconfig.client.orders import ExpertsStanding, OrderAnswer, judge
from wattmesh.reconfig.hook import placed
from wattmesh.reconfig.launch.generation import Generation, Purpose
from wattmesh.reconfig.state.boxes import boxes_of
from wattmesh.reconfig.state.expert_stacks import ExpertStacks
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Order, SwitchMode

Rows = st.integers(1, 9).flatmap(lambda n: st.permutations(range(n)))


@given(Rows, st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_stacks_are_stored_and_digested_by_the_number_of_the_expert(
    rows: list[int], width: int
) -> None:
    """Whatever order rows lie in, the pieces sum to one digest; in another order they do not."""
    whole = torch.arange(len(rows) * (width + 1), dtype=torch.float64).reshape(len(rows), -1)
    lying = {"model.w": whole[rows].contiguous()}

    def digest(tensors: dict[str, torch.Tensor], orders: dict[str, list[int]]) -> int:
        return sum(each.value for each in pieces_of(boxes_of(tensors, orders)).values()) % 2**64

    natural = digest({"model.w": whole}, {})
    assert digest(lying, {"model.w": rows}) == natural
    boxes = boxes_of(lying, {"model.w": rows})
    back = torch.empty_like(whole)
    for box in boxes.values():
        back[box.offset[0] : box.offset[0] + len(box.local)] = box.local
    assert torch.equal(back, whole)
    wrong = [*rows[1:], rows[0]]
    if len(rows) > 1:
        assert digest(lying, {"model.w": wrong}) != natural


def test_an_order_of_other_experts_than_the_stack_has_is_refused() -> None:
    """One sentence with both numbers."""
    with pytest.raises(InputInvalid, match="3 experts are placed along its first dimension"):
        boxes_of({"model.w": torch.zeros(4, 2)}, {"model.w": (0, 2, 1)})


@given(Rows)
def test_the_natural_order_is_no_placement(rows: list[int]) -> None:
    """What lies by number is told as no placement; the others are counted as moved."""
    natural = tuple(range(len(rows)))
    assert placement.settled((natural, natural)) == ()
    told = (natural, tuple(rows))
    assert placement.settled(told) == (() if tuple(rows) == natural else told)
    assert placement.moved((), told) == sum(a != b for a, b in zip(natural, rows, strict=True))


def placed_state(layer_of: dict[str, int]) -> tuple[State, Generation]:
    """One stack that is placed, whose optimizer keeps its steps as a tensor of one element."""
    part = nn.Module()
    part.w, part.dense = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3))
    rule = torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9)
    for each in part.parameters():
        rule.state[each] = {"step": torch.zeros(1), "momentum_buffer": torch.zeros_like(each)}
    rows = ((2, 0, 1),)
    stacks = ExpertStacks(layers=1, experts=3, layer_of=layer_of, placement=rows)
    generation = Generation(
        number=1,
        purpose=Purpose.START,
        run="r",
        incarnation="i",
        attempt=1,
        layout=HERE.layout,
        ranks=HERE.ranks,
        placement=rows,
    )
    return State(modules=[part], optimizers=[rule], experts=stacks), generation


def test_slots_with_a_row_for_each_expert_are_placed_and_no_others() -> None:
    """A count of steps of shape (1,) is stored as it is; momentum lies as its parameter does."""
    state, generation = placed_state({"w": 0})
    placed.check(state, generation)
    named = name_all(state)
    assert set(named.orders) == {"model.w", "optim.state.w.momentum_buffer"}
    assert "optim.state.w.step" in named.boxes
    assert "model.dense" in named.boxes


def test_a_build_that_declares_no_stacks_or_other_rows_is_refused() -> None:
    """Where experts are placed; a job whose experts lie by number need declare nothing."""
    state, generation = placed_state({"w": 0})
    assert state.experts is not None
    with pytest.raises(InputInvalid, match=r"otherwise than Ranks\.placement asked"):
        placed.check(state, replace(generation, placement=()))
    state.experts = replace(state.experts, placement=((0, 1, 1),))
    with pytest.raises(InputInvalid, match="does not place each of 3 experts once"):
        placed.check(state, generation)
    state.experts = None
    with pytest.raises(InputInvalid, match="declares no stacks"):
        placed.check(state, generation)
    placed.check(state, replace(generation, placement=()))


@pytest.mark.parametrize(
    ("layer_of", "why"),
    [
        ({"w": 0, "v": 0}, "names 'v', which is no parameter or buffer on this rank"),
        ({"_orig_mod.w": 0}, "use the names of the state dict"),
        ({"w": 1}, "names layer 1 of 1 layers of experts"),
        ({"w": -1}, "names layer -1 of 1"),
    ],
)
def test_stacks_that_are_none_are_refused_at_build(layer_of: dict[str, int], why: str) -> None:
    """A name nobody has, or a layer that is none: one sentence before anything is trained."""
    with pytest.raises(InputInvalid, match=re.escape(why)):
        placed.check(*placed_state(layer_of))


STANDING = replace(HERE, experts=ExpertsStanding(layers=1, experts=3, placement=((2, 0, 1),)))


@pytest.mark.parametrize(
    ("changed", "standing", "why"),
    [
        ({"placement": ((0, 1, 2),)}, HERE, "this job does not let them be placed"),
        ({"placement": ((0, 1, 2), (0, 1, 2))}, STANDING, "places 2 layers of experts"),
        ({"placement": ((0, 1),)}, STANDING, "places 2 experts in layer 0, the model has 3"),
        ({"placement": ((0, 1, 1),)}, STANDING, "does not place each of 3 experts once"),
        ({"placement": ((0, 1, 2),), "mode": SwitchMode.RESIZE}, STANDING, "cannot"),
        ({"placement": ((2, 0, 1),)}, STANDING, "in that layout already"),
        ({"placement": ()}, STANDING, "in that layout already"),
        ({"placement": ((0, 1, 2),)}, STANDING, ""),
        ({"placement": ((1, 0, 2),)}, STANDING, ""),
    ],
)
def test_an_order_with_a_placement_is_taken_only_where_it_fits(
    changed: dict[str, object], standing: object, why: str
) -> None:
    """In the layout that the run has, too; else void with a sentence. By number is a placement."""
    asked: Order = replace(
        GOOD,
        layout=HERE.layout,
        ranks=HERE.ranks,
        **changed,  # type: ignore[arg-type]
    )
    resizes = replace(standing, resizes=True)  # type: ignore[type-var]
    answer, told = judge(asked, resizes)  # type: ignore[arg-type]
    assert (answer is OrderAnswer.TAKE) == (why == ""), told
    assert why in told


def test_a_placement_says_nothing_of_what_a_switch_between_points_takes() -> None:
    """The guard and the planner learn from switches alone."""
    at = datetime(2026, 11, 20, tzinfo=UTC)
    row = SwitchRow(
        switch_id="p",
        run="r",
        attempt=1,
        epoch=1,
        from_point="A",
        to_point="A",
        order=replace(GOOD, placement=((1, 0),)),
        state=SwitchState.CONFIRMED,
        requested_by="operator",
        reason="",
        predicted_ug=None,
        switch_cost_ug=None,
        created_at=at,
        updated_at=at,
        evidence={"total_s": 3.0},
    )
    assert _records([row], 1, at) == ()
    (told,) = _records([replace(row, order=GOOD, to_point="B")], 1, at)
    assert (told.origin, told.target, told.told_s) == ("A", "B", 3.0)


class Squares(nn.Module):
    """Two experts' worth of weights and more, as rows of a stack."""

    def __init__(self, whole: torch.Tensor, rows: list[int]) -> None:
        """Lay the stack in an order."""
        super().__init__()
        self.w = nn.Parameter(whole[rows].clone())

    def forward(self, rows_RD: torch.Tensor, counts_L: torch.Tensor) -> torch.Tensor:
        """Apply each expert to its rows."""
        parts = torch.split(rows_RD, counts_L.tolist())
        return torch.cat([torch.tanh(part @ w) for part, w in zip(parts, self.w, strict=True)])


def test_outputs_gradients_and_norms_do_not_depend_on_where_experts_lie() -> None:
    """Bit for bit, for every row and expert; experts without rows included.

    Rows of 64 bytes: where a row is no multiple of a vector register, the CPU's own products differ
    by where in memory a row begins.
    """
    experts, width = 5, 8
    draw = torch.Generator().manual_seed(2)
    whole = torch.randn(experts, width, width, generator=draw, dtype=torch.float64)
    counts = torch.tensor([3, 0, 5, 1, 4])
    given_ND = torch.randn(int(counts.sum()), width, generator=draw, dtype=torch.float64)
    found = []
    for seed in range(4):
        rows = random.Random(seed).sample(range(experts), experts) if seed else []
        stack = Squares(whole, rows or list(range(experts)))
        x = given_ND.clone().requires_grad_()
        y = ExpertParallel().placed_as(rows, "cpu")(stack, x, counts)
        torch.autograd.backward(y.square().sum())
        assert stack.w.grad is not None
        assert x.grad is not None
        slots = np.argsort(rows or range(experts))
        squares = expert_squares([[stack.w]], [rows] if rows else [], experts)
        found.append((y.detach(), x.grad, stack.w.grad[slots], squares))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert float(found[0][3].sum()) == pytest.approx(float(found[0][2].square().sum()))
