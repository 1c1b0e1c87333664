"""Measures the noise floor of a probe: the same probe with products summed in other orders.

A matrix product `a @ b` becomes `a[:, :k] @ b[:k] + a[:, k:] @ b[k:] + ...`, each part rounded to
the dtype of the result, as in tensor parallelism. Everything else stays as in the job, including
autocast and mixed precision; compiled code runs uncompiled, because its operators are not visible.

Invariant: a probe under `Products` with one part computes the same as without it.
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
    ProbeResult,
    coarsest,
    together,
    tolerance,
)

SPLITS = (2, 4, 8, 3, 16, 5, 6, 12)
"""Numbers of parts of the summed dim, one probe per number."""

assert len(SPLITS) == ORDERS

_SUMMED = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
"""Products that can be split, and the positions of their factors."""

_WHOLE = ("linear", "matmul")
"""Composite operators that inference mode does not decompose into products."""

_OTHERS = ("convolution", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm")
"""Products whose dtype is recorded but which are not split; also names with `attention`."""

_PRODUCTS = frozenset((*_SUMMED, *_WHOLE, *_OTHERS))


class Products(torch_compat.dispatch_mode()):  # type: ignore[misc]
    """Records the dtypes of products, and splits their sums into `parts`."""

    def __init__(self, parts: int = 1) -> None:
        """Begin without records."""
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
        """Handle one operator; DTensors and other wrappers come back as their inner tensors."""
        name = func.overloadpacket.__name__
        # `Tensor.view` to another dtype lists torch.Tensor itself, which is no wrapper.
        if any(each is not torch.Tensor for each in types):
            # DTensor refuses some operators that it meets for the first time under a mode, such as
            # norms of lists and an optimizer's first zeros. They hold no product.
            inner = name in _PRODUCTS or "attention" in name
            return NotImplemented if inner else func(*args, **(kwargs or {}))
        if name in _WHOLE:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if name in _SUMMED or name in _OTHERS or "attention" in name:
            self.dtypes.update(_dtype(each) for each in args if _is_floating(each))
        out = self._product_in_parts(name, args) if not kwargs and name in _SUMMED else None
        out = func(*args, **(kwargs or {})) if out is None else out
        if isinstance(out, torch.Tensor) and out.numel() == 1 and _is_sum(args):
            self.losses.add(str(out.dtype).removeprefix("torch."))
        return out

    def _product_in_parts(self, name: str, args: tuple[Any, ...]) -> torch.Tensor | None:
        """Compute the product in parts; None when it is not split."""
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
            # Out of memory, or no kernel for such a part. Continue: other ranks wait in
            # collectives.
            return None
        self.cut += 1
        return out


def measure(
    probe: Callable[[], float], difference: float, parameters: Sequence[str]
) -> ProbeResult:
    """Measure the dtypes of a probe and the changes of its loss. A collective call.

    Args:
        probe: the job's, in the present layout.
        difference: the difference to explain, equal on every rank; the search stops once it is
            explained, because further orders never lower the tolerance.
        parameters: dtypes of the parameters.
    """
    reference, products = _once(probe, 1)
    losses = products.losses & RESOLUTION.keys()
    own = every = ProbeResult(
        products=coarsest(products.dtypes),
        loss=max(losses, key=lambda each: RESOLUTION[each], default=""),
    )
    for parts in SPLITS:
        value, products = _once(probe, parts)
        moved = abs(value - reference) / max(abs(reference), sys.float_info.min)
        own = replace(own, moved=(*own.moved, moved))
        told = group.gather([asdict(own), products.cut])
        every = together(
            [ProbeResult(**{**each, "moved": tuple(each["moved"])}) for each, _ in told]
        )
        if not any(cut for _, cut in told):
            return replace(every, moved=())
        if difference <= tolerance(every, parameters).relative:
            break
    return every


def _once(probe: Callable[[], float], parts: int) -> tuple[float, Products]:
    """The probe's loss with sums split into `parts`, and the recorded products."""
    with uncompiled(), Products(parts) as products, torch.no_grad():
        return probe(), products


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled functions eagerly; a null context if torch.compile was not used."""
    if not torch_compat.has_compiled():
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _dtype(tensor: torch.Tensor) -> str:
    """The dtype in which products of a tensor are computed, as a key of `ASSUMED`."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(("float8", "float4")):
        return "float8"
    if name == "float32" and tensor.is_cuda and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return name


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_sum(args: tuple[Any, ...]) -> bool:
    """Tell whether an operator reduced several numbers to one."""
    return any(isinstance(each, torch.Tensor) and each.numel() > 1 for each in args)
