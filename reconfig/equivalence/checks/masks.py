"""V4 and V6: dropout masks and expert choices do not depend on the layout. Pure.

The dropout masks of a sample (V4) and the experts of a token (V6) must be functions of the logical
position. `watch.py` records masks.

Invariant: a record on one side only counts as a difference.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.reconfig.equivalence.verdict import Verdict

Masks = Mapping[Hashable, bytes]
"""From a key like (step, sample, layer) to the mask's bits."""

Routes = Mapping[str, NDArray[Any]]
"""From layer to the chosen experts (tokens, k); -1 for a dropped token."""


def same_masks(found: Masks, reference: Masks) -> Verdict:
    """V4: compare the dropped elements of every sample."""
    keys = set(found) | set(reference)
    wrong = sorted((each for each in keys if found.get(each) != reference.get(each)), key=repr)
    first = f"; the first: {wrong[0]}" if wrong else ""
    return Verdict(
        check="V4",
        name="masks that differ",
        measured=len(wrong) if reference else float("inf"),
        limit=0,
        sentence=f"{len(wrong)} of {len(keys)} masks differ{first}",
    )


def same_routes(found: Routes, reference: Routes) -> Verdict:
    """V6: compare the sets of experts of every token, dropped ones included."""
    wrong, count, first = 0, 0, ""
    for layer in sorted(set(found) | set(reference)):
        a, b = found.get(layer), reference.get(layer)
        count += len(b) if b is not None else 0
        if a is None or b is None or a.shape != b.shape:
            here = max(len(each) for each in (a, b) if each is not None)
            at = 0
        else:
            # Compared as sets: the order follows gate values, which rounding may reorder.
            odd = np.any(np.sort(a, axis=1) != np.sort(b, axis=1), axis=1)
            here, at = int(odd.sum()), int(odd.argmax())
        if here and not first:
            first = f"; the first: token {at} of {layer}"
        wrong += here
    return Verdict(
        check="V6",
        name="tokens routed otherwise",
        measured=wrong if reference else float("inf"),
        limit=0,
        sentence=f"{wrong} of {count} tokens went to other experts{first}",
    )
