"""Counts of what tokens chose: how much each expert does, and which ones serve the same tokens.

Shape suffixes: L layers, N tokens, P experts per token, X experts.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.placement.problem import Counts

Chosen = NDArray[np.integer[Any]]


def count_choices(chosen_LNP: Sequence[Chosen], experts: int) -> Counts:
    """Count what tokens chose.

    Args:
        chosen_LNP: of each layer, the experts of every token, (N, P); the same tokens in each.
        experts: of one layer.

    Raises:
        InputInvalid: layers have different tokens, an expert is none of these, or a token chose one
            twice.
    """
    if not chosen_LNP or experts < 1:
        raise InputInvalid(f"{len(chosen_LNP)} layers of {experts} experts: nothing to count")
    if len({len(each) for each in chosen_LNP}) > 1:
        raise InputInvalid("the layers were recorded on different numbers of tokens")
    if any(each.size and not 0 <= each.min() <= each.max() < experts for each in chosen_LNP):
        raise InputInvalid(f"a token chose an expert that is none of the {experts}")
    if any((np.diff(np.sort(each, axis=1), axis=1) == 0).any() for each in chosen_LNP):
        raise InputInvalid("a token chose one expert twice in a layer")
    used_LNX = [_used(each, experts) for each in chosen_LNP]
    together = np.stack([each.T @ each for each in used_LNX])
    loads = np.stack([each.sum(axis=0) for each in used_LNX])
    for each in together:
        np.fill_diagonal(each, 0.0)
    onward = [before.T @ after for before, after in pairwise(used_LNX)]
    empty = np.zeros((0, experts, experts))
    return Counts(
        loads_LX=loads, together_LXX=together, onward_LXX=np.stack(onward) if onward else empty
    )


def _used(chosen_NP: Chosen, experts: int) -> NDArray[np.float64]:
    used_NX = np.zeros((len(chosen_NP), experts))
    used_NX[np.arange(len(chosen_NP))[:, None], chosen_NP] = 1.0
    return used_NX
