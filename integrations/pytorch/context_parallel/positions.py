"""Which positions of every sequence a rank holds.

The sequence is dealt head-tail: cut into 2 n pieces, rank r gets pieces r and 2 n - 1 - r, so that
under a causal mask all ranks attend to equally many keys.
"""

import torch
from torch import Tensor


def head_tail(length: int, ranks: int, rank: int) -> Tensor:
    """Return the positions of a sequence that `rank` of `ranks` holds, (length / ranks,).

    `length` must be divisible by 2 * ranks, unless there is one rank.
    """
    if ranks == 1:
        return torch.arange(length)
    piece = length // (2 * ranks)
    head = torch.arange(rank * piece, (rank + 1) * piece)
    tail = torch.arange(length - (rank + 1) * piece, length - rank * piece)
    return torch.cat((head, tail))
