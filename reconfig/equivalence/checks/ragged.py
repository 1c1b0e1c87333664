"""V5: the loss of a batch with ragged masks does not depend on its microbatches. Pure.

A mean of microbatch means weights a token by the number of unmasked tokens in its microbatch; only
a sum over all unmasked tokens, divided by their global number, is independent of the microbatches.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.equivalence.verdict import Verdict
from wattmesh.reconfig.equivalence.whole import FP64_LIMIT, relative


def ragged_mask(samples: int, seq_len: int, *, seed: int = 0) -> NDArray[np.bool_]:
    """Return a mask (samples, seq_len) whose rows keep very different numbers of tokens.

    The first row keeps all tokens and the second one token, so that microbatches are never even.

    Raises:
        InputInvalid: fewer than two samples or tokens.
    """
    if samples < 2 or seq_len < 2:
        raise InputInvalid(f"equivalence: a ragged mask needs 2 x 2, got {samples} x {seq_len}")
    lengths = np.random.default_rng(seed).integers(1, seq_len + 1, samples)
    lengths[:2] = seq_len, 1
    kept: NDArray[np.bool_] = np.arange(seq_len) < lengths[:, None]
    return kept


def same_loss(losses: Mapping[int, float], *, limit: float = FP64_LIMIT) -> Verdict:
    """V5: compare losses of one ragged batch, by samples per microbatch, with the largest's."""
    if len(losses) < 2:
        return Verdict(
            check="V5",
            name="loss over microbatches",
            measured=math.inf,
            limit=limit,
            sentence=f"{len(losses)} sizes of microbatch were tried, two are needed to compare",
        )
    whole = max(losses)
    gap, size = max((relative(each, losses[whole]), size) for size, each in losses.items())
    return Verdict(
        check="V5",
        name="loss over microbatches",
        measured=gap,
        limit=limit,
        sentence=(
            f"the loss of one batch differs by {gap:.2e} between microbatches of {size} and "
            f"{whole} samples"
        ),
    )
