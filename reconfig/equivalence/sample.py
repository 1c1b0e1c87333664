"""A bounded sample of an unsharded state's elements, the same in every launch. Pure (numpy).

Over seeds many states are kept, so of each only some elements are: of every tensor at least
`LEAST` (or all), of the whole about `BUDGET`. Which ones depends on the tensor's name and size
alone, so that samples of two launches, in whatever layouts, hold the same elements.
"""

import zlib
from collections.abc import Iterable

import numpy as np

from wattmesh.reconfig.equivalence.whole import WholeState

BUDGET = 1 << 18
"""Elements of one sample, about."""

LEAST = 64
"""Elements of one tensor."""


def sampled(whole: WholeState, prefixes: Iterable[str] = ("",)) -> WholeState:
    """Return a sample of the tensors whose names begin with one of `prefixes`."""
    begins = tuple(prefixes)
    held = {name: array for name, array in whole.arrays.items() if name.startswith(begins)}
    share = BUDGET / max(BUDGET, sum(array.size for array in held.values()))
    found = {}
    for name, array in held.items():
        flat = array.reshape(-1)
        count = max(LEAST, int(array.size * share))
        if count < array.size:
            draw = np.random.default_rng([zlib.crc32(name.encode()), array.size])
            flat = flat[draw.integers(0, array.size, count)]
        found[name] = np.array(flat)
    return WholeState(arrays=found)
