"""Counts what a rank gives to all-to-alls: bytes, forward and backward."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class SentBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, adds up the bytes of every all-to-all's input in this thread.

    Attributes:
        count: bytes so far, with those that a rank sends to itself.
    """

    def __init__(self) -> None:
        """Begin at 0."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Look at one operator, and run it."""
        if func is torch.ops.c10d.alltoall_base_.default:
            self.count += args[1].nbytes
        return func(*args, **(kwargs or {}))
