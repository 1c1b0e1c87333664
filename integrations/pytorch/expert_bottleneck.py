"""Fewer features of every token on its way to its experts and back: learned maps at both ends.

What leaves a rank is `rows W'`, of some features; whoever gets it takes `codes W` for the rows. A
map is one matrix W, used both ways (a linear autoencoder with tied weights). That is another
function than sending rows whole, so a layout with it trains another model for that time. Maps are
applied to every row, also where nothing is sent: the function depends on whether rows are narrow,
never on who holds which expert.

Evaluation always sends rows whole. The model that comes out has no maps in it, and the probe at a
switch says whether the state arrived, whatever the next steps do.

Maps learn in every training step, narrow or not, from how far the rows they would give are from
those they got, so that they are ready when rows become narrow; where they are, from the loss too.

Shape suffixes: N rows, D model width, K features of a narrow row.
"""

from typing import Any

import torch
from torch import Tensor, nn

from wattmesh.integrations.pytorch.tensor_parallel import shared

PRACTICE = 0.1
"""Weight of the maps' own error, a mean over tokens, beside the loss. Adam divides it out; it only
keeps the norm of the whole gradient that of the loss."""

GAIN = 8.0
"""A map is so many times its parameter, so that Adam, whose steps have the length of the learning
rate, moves it so many times faster: it must follow rows that change while the model learns."""

TINY = 1e-12


class NarrowMap(nn.Module):
    """Packs rows before an all-to-all, and unpacks them behind it.

    Attributes:
        narrow: whether training steps send codes instead of rows; set by the layout.
        tokens: of the global batch, which the error is divided by.
    """

    def __init__(self, dim: int, features: int) -> None:
        """Make a map from `dim` to `features`."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, dim))
        self.narrow = False
        self.tokens = 1

    def pack(self, rows_ND: Tensor) -> Tensor:
        """Return what is sent for rows: (N, D), or (N, K) where they are narrow."""
        if not self.training:
            return rows_ND
        weight_KD = self._matrix()
        practised_ND: Tensor = _Practise.apply(  # type: ignore[no-untyped-call]
            rows_ND, weight_KD, PRACTICE / self.tokens
        )
        return practised_ND @ weight_KD.T if self.narrow else practised_ND

    def unpack(self, sent: Tensor) -> Tensor:
        """Return rows (N, D) for what was sent."""
        return sent @ self._matrix() if self.training and self.narrow else sent

    def _matrix(self) -> Tensor:
        return GAIN * shared(self.weight)


def practice_loss(rows_ND: Tensor, weight_KD: Tensor) -> Tensor:
    """Return half the squared error of the rows that a map gives, each over its own square."""
    error_ND = rows_ND @ weight_KD.T @ weight_KD - rows_ND
    squares_N = rows_ND.square().sum(-1) + TINY
    return (error_ND.square().sum(-1) / squares_N).sum() / 2


class _Practise(torch.autograd.Function):
    """Passes rows on, and adds the gradient of the map's own loss to that of its weight."""

    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, weight_KD: Tensor, share: float) -> Tensor:
        ctx.save_for_backward(rows_ND, weight_KD)
        ctx.share = share
        return rows_ND.view_as(rows_ND)

    @staticmethod
    def backward(ctx: Any, gradient_ND: Tensor) -> tuple[Tensor, Tensor, None]:
        rows_ND, weight_KD = ctx.saved_tensors
        with torch.enable_grad():
            leaf_KD = weight_KD.detach().requires_grad_()
            loss = practice_loss(rows_ND.detach(), leaf_KD) * ctx.share
        (dweight_KD,) = torch.autograd.grad(loss, leaf_KD)
        return gradient_ND, dweight_KD, None
