"""How much the probes of two layouts may differ: four times the noise floor of the computation.

Another layout adds the same numbers in another order. How much that changes a loss depends on the
dtype that products are *computed* in (autocast, FSDP2's mixed precision, tf32), not on the dtype of
the parameters; it is measured by computing the probe again in the same layout with products summed
in other orders (`reordered.py`).

Pure and torch-free.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TIMES_FLOOR = 4.0

ASSUMED = {
    "float64": 2.5e-13,
    "float32": 1e-6,
    "tf32": 2e-4,
    "float16": 2e-4,
    "bfloat16": 2e-3,
    "float8": 1e-2,
}
"""Relative noise floor of a probe by the dtype of its products, until it is measured."""

RESOLUTION = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half the relative distance of two adjacent numbers: a loss in such a dtype changes in these
steps, so a measurement finds either no change or one step."""

ORDERS = 8
"""Orders of summation to try before the difference counts as too large."""

_AT_MOST = 4.0
"""Limit of a measured floor, in multiples of the assumed one, so that a layout with wrong results
does not raise its own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What a probe computed, over all ranks.

    Attributes:
        products: coarsest dtype of `ASSUMED` among its matrix products; "" without products.
        loss: coarsest dtype of `RESOLUTION` among its sums to a single number; "" for none.
        moved: relative change of the loss, for every order of summation that was tried.
    """

    products: str
    loss: str = ""
    moved: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The permitted relative difference of a probe, and the reason in words."""

    relative: float
    reason: str


def coarsest(dtypes: Iterable[str]) -> str:
    """Return the noisiest of some dtypes; "" for none. An unlisted one counts as float32."""
    known = [each if each in ASSUMED else "float32" for each in dtypes]
    return max(known, key=lambda each: ASSUMED[each], default="")


def at_once(parameters: Iterable[str]) -> Tolerance:
    """Return the tolerance that applies without knowing the dtype of the products.

    Args:
        parameters: dtypes of the parameters.
    """
    exact = coarsest(parameters) == "float64"
    dtype = "float64" if exact else "float32"
    return Tolerance(TIMES_FLOOR * ASSUMED[dtype], f"rounding in {dtype}")


def tolerance(computed: ProbeResult, parameters: Iterable[str]) -> Tolerance:
    """Return the tolerance of a probe.

    The floor is the largest measured change; after all `ORDERS` twice that, so that of switches
    whose noise is double the measured one, one in ten thousand is refused.

    Args:
        computed: the probe's computation.
        parameters: dtypes of the parameters, used where there were no products.
    """
    dtype = computed.products or coarsest(parameters) or "float32"
    floor, seen = ASSUMED[dtype], len(computed.moved)
    told = f"products in {dtype}"
    if dtype == "float64" or not seen:
        return Tolerance(TIMES_FLOOR * floor, f"the noise of {told}, not measured here")
    largest = max(computed.moved)
    # At least the resolution of the loss, at most what the dtype can explain.
    lowest = max(ASSUMED["float32"], RESOLUTION.get(computed.loss, 0.0))
    measured = largest * (2 if seen >= ORDERS else 1)
    floor = max(lowest, min(measured, _AT_MOST * ASSUMED[dtype]))
    return Tolerance(
        TIMES_FLOOR * floor,
        f"4 times {floor:.1e}, the noise of {told}: in {seen} other orders of summation the loss "
        f"moved by up to {largest:.1e}",
    )


def together(seen: Sequence[ProbeResult]) -> ProbeResult:
    """Merge the ranks' results, which are of the same orders."""
    losses = [each.loss for each in seen if each.loss]
    moves = zip(*(each.moved for each in seen), strict=True)
    return ProbeResult(
        products=coarsest(each.products for each in seen if each.products),
        loss=max(losses, key=lambda each: RESOLUTION[each], default=""),
        moved=tuple(max(each) for each in moves),
    )
