"""What a probe may move by: the rule, and what products of a real model are seen to do."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from wattmesh.reconfig.probe.noise import (
    ASSUMED,
    ORDERS,
    TIMES_FLOOR,
    ProbeResult,
    at_once,
    coarsest,
    together,
    tolerance,
)
from wattmesh.reconfig.probe.probing import take
from wattmesh.reconfig.probe.reordered import Products, uncompiled
from wattmesh.reconfig.state.state import State

FP32 = ["float32"]


def test_fp64_is_held_to_a_millionth_of_a_millionth() -> None:
    """Whatever was measured; and fp32 masters are only trusted to compute in fp32 at first."""
    assert at_once(["float64"]).relative == 1e-12
    assert tolerance(ProbeResult(products="float64", moved=(1e-3,)), FP32).relative == 1e-12
    for dtypes in (FP32, ["float64", "float32"], ["bfloat16"], ["int8"]):
        assert at_once(dtypes).relative == pytest.approx(4e-6)


@pytest.mark.parametrize(
    ("computed", "floor"),
    [
        # Nothing could be summed otherwise: assumed, by products and else by parameters.
        (ProbeResult(products="bfloat16"), 2e-3),
        (ProbeResult(products=""), 1e-6),
        # Measured: the largest, and twice that when no order explained the difference.
        (ProbeResult(products="bfloat16", moved=(1e-4, 3e-4)), 3e-4),
        (ProbeResult(products="bfloat16", moved=(3e-4, *[1e-5] * (ORDERS - 1))), 6e-4),
        # Never below what fp32 does or the loss can show, nor far above what is assumed.
        (ProbeResult(products="bfloat16", moved=(0.0,)), 1e-6),
        (ProbeResult(products="bfloat16", loss="bfloat16", moved=(0.0,) * ORDERS), 2**-8),
        (ProbeResult(products="bfloat16", moved=(0.5,)), 8e-3),
        (ProbeResult(products="float32", moved=(2e-6,)), 2e-6),
        (ProbeResult(products="float32", moved=(1e-3,)), 4e-6),
        (ProbeResult(products="tf32", moved=(1e-4,)), 1e-4),
    ],
)
def test_the_floor_follows_what_was_measured(computed: ProbeResult, floor: float) -> None:
    """Four times it is allowed, and the sentence names dtype and orders."""
    found = tolerance(computed, FP32)
    assert found.relative == pytest.approx(TIMES_FLOOR * floor)
    assert (computed.products or "float32") in found.reason
    assert ("not measured" in found.reason) == (not computed.moved)


@given(
    st.lists(st.floats(0, 1), max_size=ORDERS),
    st.floats(0, 1),
    st.sampled_from(sorted(ASSUMED)),
)
def test_more_orders_never_allow_less(moved: list[float], more: float, products: str) -> None:
    """So measuring may stop as soon as a difference is explained."""
    few = ProbeResult(products=products, moved=tuple(moved))
    many = ProbeResult(products=products, moved=(*moved, more))
    if moved:
        assert tolerance(few, FP32).relative <= tolerance(many, FP32).relative
    assert tolerance(many, FP32).relative <= 4 * TIMES_FLOOR * ASSUMED[products]
    broken = ProbeResult(products=products, moved=(*moved, math.nan))
    assert math.isfinite(tolerance(broken, FP32).relative)


def test_ranks_agree_on_the_noisiest() -> None:
    """Of a pipeline one rank may hold no product at all."""
    seen = [
        ProbeResult(products="", moved=(1e-5, 2e-5)),
        ProbeResult(products="bfloat16", loss="float16", moved=(3e-5, 1e-5)),
        ProbeResult(products="float32", loss="bfloat16", moved=(0.0, 0.0)),
    ]
    assert together(seen) == ProbeResult(products="bfloat16", loss="bfloat16", moved=(3e-5, 2e-5))
    assert coarsest([]) == ""


class Net(nn.Module):
    """Attention by hand, so that products of matrices and of batches of them are there."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32, bias=False)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Map a batch."""
        q, k, v = self.qkv(x_BSD).chunk(3, -1)
        y_BSD: torch.Tensor = self.out(torch.softmax(q @ k.transpose(1, 2), -1) @ v)
        return y_BSD.float().square().mean()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("low", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_the_dtype_of_products_is_seen_and_their_sums_are_cut(
    mode: Callable[[], torch.no_grad], low: bool, dtype: str
) -> None:
    """In one part nothing changes; in more the loss moves, by as much as the dtype explains."""
    torch.manual_seed(1)
    net, x_BSD = Net(), torch.randn(2, 8, 32)

    def loss() -> float:
        with mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            return float(net(x_BSD))

    alone = loss()
    with Products() as products:
        assert loss() == alone
    assert (products.dtypes, products.losses, products.cut) == ({dtype}, {"float32"}, 0)
    moved = []
    for parts in (2, 3, 8):
        with Products(parts) as products:
            moved.append(abs(loss() - alone) / alone)
        assert products.cut == 4
    assert 0 < max(moved) < TIMES_FLOOR * ASSUMED[dtype]


def test_a_loss_that_is_kept_in_bf16_is_noticed() -> None:
    """It can only move in steps, so a probe that did not move has shown little."""
    with Products() as products, torch.no_grad():
        torch.ones(4, 4).bfloat16().sum()
    assert products.losses == {"bfloat16"}


def test_a_tensor_that_wraps_others_is_looked_into() -> None:
    """As DTensor wraps a rank's shard: what is cut is the product of what is inside."""
    wrapped = TwoTensor(torch.randn(4, 4), torch.randn(4, 4))  # type: ignore[no-untyped-call]
    with Products(2) as products, torch.no_grad():
        wrapped @ wrapped
    assert products.cut == 2


def test_a_model_with_buffers_can_be_measured() -> None:
    """The probe's buffers are compared bit by bit under it; torch names no wrapper there."""
    norm = nn.BatchNorm1d(3)
    state = State(modules=[norm], optimizers=[])
    with Products(2):
        take(lambda state: float(state.modules[0](torch.randn(4, 3)).sum()), state)
    assert torch.equal(norm.get_buffer("running_mean"), torch.zeros(3))


def test_compiled_code_is_looked_into_and_stays_compiled() -> None:
    """Watched it runs uncompiled; afterwards the compiled code is there still."""
    ran = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def compiled(*args: Any) -> Any:
            ran.append("compiled")
            return graph.forward(*args)

        ran.append("compiling")
        return compiled

    product = torch.compile(lambda x_DD: (x_DD @ x_DD).sum(), backend=backend)
    x_DD = torch.randn(8, 8)
    with torch.no_grad():
        product(x_DD)
        with uncompiled(), Products(2) as products:
            product(x_DD)
        product(x_DD)
    assert products.cut == 1
    assert ran == ["compiling", "compiled", "compiled"]
