"""Records dropout masks by sample, for V4.

Torch's dropout draws from one random stream per process, so a sample's mask depends on the layout.
A job whose masks are keyed by (seed, step, sample, layer) passes V4; one with `nn.Dropout` over
several data-parallel ranks does not.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


@contextmanager
def watch_masks(
    layers: Iterable[tuple[str, nn.Module]],
    samples: Sequence[int],
    into: dict[Hashable, bytes],
    *,
    step: int,
) -> Iterator[None]:
    """Record the masks of dropout-like layers while a forward runs.

    Args:
        layers: names and modules whose output is their input with some elements zeroed.
        samples: global ids of the batch's rows, in order; a forward of several microbatches
            goes through them one after the other.
        into: (step, sample, layer) -> the mask's bits; only layers in training mode.
        step: the number of the step.

    Raises:
        IndexError: more rows went through a layer than there are samples.
    """
    seen: dict[str, int] = {}

    def note(name: str, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        # Where the input is 0 the mask does not show; it counts as kept in every layout.
        kept = (output != 0) | (inputs[0] == 0)
        for row in kept.detach().cpu().numpy():
            at = seen.get(name, 0)
            seen[name] = at + 1
            into[step, samples[at], name] = np.packbits(row).tobytes()

    def hook(name: str) -> Any:
        return lambda module, inputs, output: note(name, inputs, output)

    handles = [each.register_forward_hook(hook(name)) for name, each in layers if each.training]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
