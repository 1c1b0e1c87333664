"""A bounded sample of an unsharded state's elements, the same in every launch. Pure (numpy).

Over seeds many states are kept, so of each tensor only `MOST` elements are, at random with
replacement. Which ones depends on its name and size alone, so that samples of two launches, in
whatever layouts, hold the same elements. They are scaled so that norms and inner products of
samples are those of the whole on the mean.
"""

import math
import zlib
from collections.abc import Iterable

import numpy as np

from wattmesh.reconfig.equivalence.whole import WholeState

MOST = 4096
"""Elements of one tensor; a smaller tensor is whole."""


def sampled(whole: WholeState, prefixes: Iterable[str] = ("",)) -> WholeState:
    """Return a sample of the tensors whose names begin with one of `prefixes`."""
    begins = tuple(prefixes)
    found = {}
    for name, array in whole.arrays.items():
        if not name.startswith(begins):
            continue
        values = array.reshape(-1).astype(np.float64)
        if array.size > MOST:
            draw = np.random.default_rng([zlib.crc32(name.encode()), array.size])
            chosen = array.reshape(-1)[draw.integers(0, array.size, MOST)]
            values = chosen.astype(np.float64) * math.sqrt(array.size / MOST)
        found[name] = values
    return WholeState(arrays=found)
