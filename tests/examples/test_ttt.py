"""Test-time training by chunks is gradient descent on each token's error, as autograd has it."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from examples.pretrain.ttt import EPSILON, InnerLoop
from wattmesh.integrations.pytorch.context_parallel.carried import Carried

BATCH, HEADS, LENGTH, WIDTH = 2, 2, 12, 5


def drawn() -> list[Tensor]:
    """First weights, queries, keys, values and rates, fp64."""
    draw = torch.Generator().manual_seed(7)
    wide = (BATCH, HEADS, LENGTH, WIDTH)
    shapes = ((BATCH, HEADS, WIDTH, WIDTH), wide, wide, wide, (BATCH, HEADS, LENGTH, 1))
    found = [torch.randn(each, generator=draw, dtype=torch.float64) for each in shapes]
    return [*found[:4], torch.sigmoid(found[4]) / WIDTH]


def model(weight: Tensor, x: Tensor) -> Tensor:
    """The inner model of one head."""
    return x + functional.layer_norm(x @ weight, (WIDTH,), eps=EPSILON)


def by_token(chunk: int, first: Tensor, *inputs: Tensor) -> Tensor:
    """The oracle: head by head and token by token, with autograd's gradient of the inner loss."""
    answers = torch.empty(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64)
    for sample in range(BATCH):
        for head in range(HEADS):
            queries, keys, values, rates = (each[sample, head] for each in inputs)
            weight = begun = first[sample, head].detach()
            for at in range(LENGTH):
                if at % chunk == 0:
                    begun = weight.clone().requires_grad_()
                loss = (model(begun, keys[at]) - values[at]).square().sum() / 2
                (slope,) = torch.autograd.grad(loss, begun)
                weight = weight - rates[at] * slope
                answers[sample, head, at] = model(weight, queries[at])
    return answers


@pytest.mark.parametrize("chunk", [1, 4, 12])
def test_chunks_are_steps_of_gradient_descent(chunk: int) -> None:
    """One token at a time, some, and all at once. Sabotaged twin: chunks that begin elsewhere."""
    first, *inputs = drawn()
    expected = by_token(chunk, first, *inputs)
    found, _ = InnerLoop(chunk)(first, *inputs)
    assert (found - expected).abs().max() <= 1e-12
    other, _ = InnerLoop(3)(first, *inputs)
    assert (other - expected).abs().max() > 1e-3


def test_the_backward_pass_is_that_of_the_forward_one() -> None:
    """Against differences: the gradient through the inner gradients, of states and inputs alike."""
    leaves = [each[:1, :1].clone().requires_grad_() for each in drawn()]
    chain, inner = Carried(), InnerLoop(4)
    assert torch.autograd.gradcheck(lambda *given: chain(inner, *given), leaves)
