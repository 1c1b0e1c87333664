"""The loss: summed over tokens, divided by the token count of the *global* batch.

Invariant: a plain sum of every rank's and microbatch's value is the loss of the global batch, also
where samples have masked tokens. A mean of microbatch means would weigh tokens by how a layout
happens to group them.
"""

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional

IGNORED = -100
"""Targets of this value are masked."""


def token_loss(logits_BSV: Tensor, targets_BS: Tensor, tokens: float) -> Tensor:
    """Return the summed cross-entropy over `tokens`, the unmasked tokens of the global batch."""
    if isinstance(logits_BSV, DTensor):
        logits_BSV = logits_BSV.to_local()
    summed = functional.cross_entropy(
        logits_BSV.flatten(0, 1), targets_BS.flatten(), reduction="sum", ignore_index=IGNORED
    )
    return summed / tokens
