"""How far two layouts' probes may be apart: four times the noise floor of the probe's computation.

Another layout adds the same numbers in another order. How much that moves a loss follows the
dtype that products are *computed* in (autocast, FSDP2's mixed precision, tf32), whatever the
parameters are kept in; it is measured by computing the probe again in the same layout, with
products summed in other orders (`reordered.py`).

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
"""Relative noise floor of a probe by what its products are computed in, until it is measured."""

RESOLUTION = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half the relative distance of two neighbours: a loss that is itself kept so moves in such steps,
and measuring finds either nothing or one of them."""

ORDERS = 8
"""Orders of summation that are tried before the difference counts as too large."""

_AT_MOST = 4.0
"""A measured floor counts up to this many times the assumed one: a layout that computes wildly
must not excuse itself by that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What a probe was seen to do, over all ranks.

    Attributes:
        products: coarsest of `ASSUMED` that it multiplied matrices in; "" when it multiplied none.
        loss: coarsest of `RESOLUTION` that a sum to a single number came out in; "" when none did.
        moved: relative difference of the loss, for every order of summation that was tried.
    """

    products: str
    loss: str = ""
    moved: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Relative difference that a probe may show, and the sentence that says why."""

    relative: float
    reason: str


def coarsest(dtypes: Iterable[str]) -> str:
    """Give the noisiest of some dtypes; "" of none. One that is not listed counts as float32."""
    known = [each if each in ASSUMED else "float32" for each in dtypes]
    return max(known, key=lambda each: ASSUMED[each], default="")


def at_once(parameters: Iterable[str]) -> Tolerance:
    """Give what needs no look at the computation: it would be allowed in any.

    Args:
        parameters: dtypes of the parameters.
    """
    exact = coarsest(parameters) == "float64"
    dtype = "float64" if exact else "float32"
    return Tolerance(TIMES_FLOOR * ASSUMED[dtype], f"rounding in {dtype}")


def tolerance(computed: Computed, parameters: Iterable[str]) -> Tolerance:
    """Give what the probe may show.

    The floor is the largest move that was measured; of all `ORDERS` twice that, so that among
    switches whose noise is double the measured one, one in ten thousand is refused.

    Args:
        computed: what the probe did.
        parameters: dtypes of the parameters; they decide where nothing was multiplied.
    """
    dtype = computed.products or coarsest(parameters) or "float32"
    floor, seen = ASSUMED[dtype], len(computed.moved)
    told = f"products in {dtype}"
    if dtype == "float64" or not seen:
        return Tolerance(TIMES_FLOOR * floor, f"the noise of {told}, not measured here")
    largest = max(computed.moved)
    # No less than the loss can show, no more than the dtype can explain.
    lowest = max(ASSUMED["float32"], RESOLUTION.get(computed.loss, 0.0))
    measured = largest * (2 if seen >= ORDERS else 1)
    floor = max(lowest, min(measured, _AT_MOST * ASSUMED[dtype]))
    return Tolerance(
        TIMES_FLOOR * floor,
        f"4 times {floor:.1e}, the noise of {told}: in {seen} other orders of summation the loss "
        f"moved by up to {largest:.1e}",
    )


def together(seen: Sequence[Computed]) -> Computed:
    """Bring what every rank saw into one; each tried the same orders."""
    losses = [each.loss for each in seen if each.loss]
    moves = zip(*(each.moved for each in seen), strict=True)
    return Computed(
        products=coarsest(each.products for each in seen if each.products),
        loss=max(losses, key=lambda each: RESOLUTION[each], default=""),
        moved=tuple(max(each) for each in moves),
    )
