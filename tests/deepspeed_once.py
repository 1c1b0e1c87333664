"""Imports DeepSpeed and what its engines import late, once, before a test's job forks its ranks.

With the first optimizer an engine imports Muon, whose kernels are wrapped by `torch.compile`: that
loads Inductor, two seconds of each rank's. Nobody trains with Muon here, so it is left unwrapped.
Invariant: `torch.compile` is torch's own again afterwards. Who imports this has set DS_ACCELERATOR.
"""

from typing import Any

import torch
import torch._dynamo

_compile = torch.compile


def _unwrapped(model: Any = None, **_: Any) -> Any:
    """Give what is to be compiled as it is, in both ways to write the decorator."""
    return model if model is not None else lambda each: each


vars(torch)["compile"] = _unwrapped
import deepspeed  # noqa: E402
import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: E402
import deepspeed.runtime.zero.stage3  # noqa: E402, F401

vars(torch)["compile"] = _compile
