"""V4 and V6: what belongs to a sample or a token is the same wherever it is computed. Pure.

Dropout masks (V4) and the experts a token is sent to (V6) must be functions of the logical
position. Both are compared as recorded; `watch.py` records masks.

Invariant: something recorded on one side only is a difference.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.reconfig.equivalence.verdict import Verdict

Masks = Mapping[Hashable, bytes]
"""(step, sample, layer) or the like -> the mask's bits."""

Routes = Mapping[str, NDArray[Any]]
"""layer -> (tokens, k) numbers of the experts chosen; -1 for a token that was dropped."""


def same_masks(found: Masks, reference: Masks) -> Verdict:
    """V4: the same elements of every sample were dropped."""
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
    """V6: every token was sent to the same set of experts, and none was dropped on one side."""
    wrong, count, first = 0, 0, ""
    for layer in sorted(set(found) | set(reference)):
        a, b = found.get(layer), reference.get(layer)
        count += len(b) if b is not None else 0
        if a is None or b is None or a.shape != b.shape:
            here = max(len(each) for each in (a, b) if each is not None)
            at = 0
        else:
            # A set has no order: gate values order the choices, and rounding may reorder those.
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
