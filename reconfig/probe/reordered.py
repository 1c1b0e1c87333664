"""The noise floor of a probe, measured: the same probe with products summed in other orders.

A matrix product `a @ b` becomes `a[:, :k] @ b[:k] + a[:, k:] @ b[k:] + ...`, each part rounded to
the dtype of the whole: what tensor parallelism does to it. Everything else is as the job has it,
its autocast and mixed precision as well; compiled code runs uncompiled, or nothing could be seen.

Invariant: a probe under `Products` with one part computes what it computes without.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch

from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.probe.noise import (
    ORDERS,
    RESOLUTION,
    Computed,
    coarsest,
    together,
    tolerance,
)

SPLITS = (2, 4, 8, 3, 16, 5, 6, 12)
"""Parts that the summed dim of every product is cut into, one probe each."""

assert len(SPLITS) == ORDERS

_SUMMED = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
"""Products that can be cut: which arguments are multiplied."""

_WHOLE = ("linear", "matmul")
"""Made of products, where inference mode leaves them in one piece."""

_OTHERS = ("convolution", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm")
"""Products that are looked at and left alone, with those whose name has `attention` in it."""


class Products(torch_compat.dispatch_mode()):  # type: ignore[misc]
    """Watches what products are computed in, and cuts their sums into `parts`."""

    def __init__(self, parts: int = 1) -> None:
        """Have seen nothing."""
        super().__init__()
        self._parts = parts
        self.dtypes: set[str] = set()
        self.losses: set[str] = set()
        self.cut = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Look at one operator; tensors that wrap others (DTensor) come back as what they wrap."""
        # `Tensor.view` of another dtype names torch.Tensor itself, which wraps nothing.
        if any(each is not torch.Tensor for each in types):
            return NotImplemented
        name = func.overloadpacket.__name__
        if name in _WHOLE:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if name in _SUMMED or name in _OTHERS or "attention" in name:
            self.dtypes.update(_dtype(each) for each in args if _is_floating(each))
        out = self._summed(name, args) if not kwargs and name in _SUMMED else None
        out = func(*args, **(kwargs or {})) if out is None else out
        if isinstance(out, torch.Tensor) and out.numel() == 1 and _is_sum(args):
            self.losses.add(str(out.dtype).removeprefix("torch."))
        return out

    def _summed(self, name: str, args: tuple[Any, ...]) -> torch.Tensor | None:
        """The product in parts; None when it is left as it is."""
        left, right = (args[each] for each in _SUMMED[name])
        if self._parts < 2 or left.shape[-1] < 2:
            return None
        pairs = zip(left.chunk(self._parts, -1), right.chunk(self._parts, -2), strict=True)
        try:
            out: torch.Tensor | None = None
            for one, other in pairs:
                part = one @ other
                out = part if out is None else out + part
            if out is None:
                return None
            out = out if len(args) == 2 else args[0] + out
        except RuntimeError:
            # Out of memory, or no kernel for such a part. Other ranks wait in the probe's calls.
            return None
        self.cut += 1
        return out


def measure(probe: Callable[[], float], difference: float, parameters: Sequence[str]) -> Computed:
    """Find out what a probe computes in and how its loss moves; a collective call.

    Args:
        probe: the job's, of the layout that stands.
        difference: that is to be explained, equal on every rank; no more orders are tried than
            that needs, for more of them never allow less.
        parameters: dtypes of the parameters.
    """
    reference, products = _once(probe, 1)
    losses = products.losses & RESOLUTION.keys()
    own = every = Computed(
        products=coarsest(products.dtypes),
        loss=max(losses, key=lambda each: RESOLUTION[each], default=""),
    )
    for parts in SPLITS:
        value, products = _once(probe, parts)
        moved = abs(value - reference) / max(abs(reference), sys.float_info.min)
        own = replace(own, moved=(*own.moved, moved))
        told = group.gather([asdict(own), products.cut])
        every = together([Computed(**{**each, "moved": tuple(each["moved"])}) for each, _ in told])
        if not any(cut for _, cut in told):
            return replace(every, moved=())
        if difference <= tolerance(every, parameters).relative:
            break
    return every


def _once(probe: Callable[[], float], parts: int) -> tuple[float, Products]:
    """The probe's loss with sums cut into so many parts, and what was seen of its products."""
    with uncompiled(), Products(parts) as products, torch.no_grad():
        return probe(), products


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled functions as they were written; without torch.compile there is nothing to do."""
    if not torch_compat.has_compiled():
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _dtype(tensor: torch.Tensor) -> str:
    """The name of what products of a tensor are computed in, as `ASSUMED` has it."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(("float8", "float4")):
        return "float8"
    if name == "float32" and tensor.is_cuda and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return name


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_sum(args: tuple[Any, ...]) -> bool:
    """Whether an operator that gave a single number made it out of several."""
    return any(isinstance(each, torch.Tensor) and each.numel() > 1 for each in args)
