"""What every method of attention is: from this rank's positions to the whole sequence.

Shape suffixes: B batch, S this rank's positions, H query heads, K key/value heads, E head width.
"""

from typing import Protocol

from torch import Tensor


class Attention(Protocol):
    """Attends from this rank's positions to the whole sequence."""

    def __call__(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, /) -> Tensor:
        """Return (B, H, S, E); H is a multiple of K. Collective."""
        ...
