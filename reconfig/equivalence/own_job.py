"""What a user's own job proves of a layout, held to the noise that was measured of it. Pure.

V2 in fp64 needs a job that is built in fp64. An ordinary one is compared in its own precision: one
gradient from one state (V7), what that step made of parameters and optimizer (V12), and the losses
beside those of the reference never switched. How far they may be apart says a control: the
reference's own layout with every product summed in another order. docs/convergence.md and
docs/decisions/0047-validation.md say what that proves.

Invariant: no noise, however large, allows more than `MOST` times what is known of its dtype.
"""

import math
from collections.abc import Mapping, Sequence

from wattmesh.reconfig.catalogue import Equivalence
from wattmesh.reconfig.equivalence.verdict import Classified, Verdict
from wattmesh.reconfig.equivalence.whole import GRADIENT_LIMITS, relative

KNOWN = {**GRADIENT_LIMITS, "tf32": 2e-3, "float16": 2e-3, "float8": 1e-1}
"""One gradient summed in two orders, relative, by the dtype of its products (T2)."""

TIMES_NOISE = 4.0
MOST, LEAST = 4.0, 0.1
"""Bounds of a measured limit, in multiples of `KNOWN`."""

MOST_OF_MOVE = 0.5
"""The limit of a move is at most this, whatever its dtype: noise alone decides how an optimizer
that scales each element moves one without a gradient, as the bias of attention's keys."""

ONE_DIRECTION = 0.05
"""Share of a move's noise that may lie in one direction: that of one in 400."""

NOISY = frozenset({"V2", "V7", "V12"})
"""The checks that random numbers alone make fail."""

LARGEST_MEMORY_SHARE = 0.95
"""Of a device's memory; the rest is for fragmentation and the libraries' own buffers."""


def limit(noise: float | None, dtype: str, *, of_move: bool = False) -> float:
    """Return how far two results may be apart, relative.

    Args:
        noise: how far the control was apart; None: not measured.
        dtype: of the products, a key of `KNOWN`; an unknown one counts as float32.
        of_move: whether it is how far a step moved the parameters. An optimizer that scales each
            element moves those whose gradient is below its noise by as much as any other; if a
            share `e` of the norm is noise, so is about `sqrt(e)` of the move's.
    """
    known = KNOWN.get(dtype, KNOWN["float32"])
    most = MOST * known
    if of_move:
        known = math.sqrt(known)
        most = max(MOST * known, MOST_OF_MOVE)
    if noise is None or not math.isfinite(noise):
        return known
    return max(LEAST * known, min(TIMES_NOISE * noise, most))


def limit_along(noise: float | None, allowed: float, dtype: str) -> float:
    """Return how far a move may be apart along one direction, relative to the reference's.

    Args:
        noise: how far the control was apart along it; None: not measured.
        allowed: how far the whole move may be apart. Of two moves of one length that are `a` apart,
            one is shorter along the other by `a ** 2 / 2`.
        dtype: of the products.
    """
    expected = max(ONE_DIRECTION * allowed, allowed**2 / 2)
    return max(expected, limit(noise, dtype)) if noise is not None else expected


def losses_apart(found: Mapping[int, float], reference: Mapping[int, float]) -> tuple[float, int]:
    """Return the largest relative difference of two loss curves, and its step.

    Only steps of both count; no common step, or a loss that is no number, is inf.
    """
    worst, at = 0.0, 0
    steps = sorted(found.keys() & reference.keys())
    for step in steps:
        mine, other = found[step], reference[step]
        if not (math.isfinite(mine) and math.isfinite(other)):
            return math.inf, step
        gap = relative(mine, other)
        if gap > worst:
            worst, at = gap, step
    return (worst, at) if steps else (math.inf, 0)


def close_losses(
    found: Mapping[int, float],
    reference: Mapping[int, float],
    controls: Sequence[Mapping[int, float]],
    dtype: str,
) -> Verdict:
    """Compare the losses of a switched run with the reference's, beside controls never switched.

    One value at every step tells nothing of a training, so it proves nothing.
    """
    if len(reference) > 1 and len({*found.values(), *reference.values()}) == 1:
        return Verdict(
            check="V2",
            name="losses, relative",
            measured=math.inf,
            limit=0.0,
            sentence=f"the job reports a loss of {next(iter(reference.values())):g} at every step, "
            "from which nothing can be told; give `session.report` the loss of each step",
        )
    apart, at = losses_apart(found, reference)
    noises = [gap for each in controls if math.isfinite(gap := losses_apart(each, reference)[0])]
    allowed = limit(max(noises) if noises else None, dtype)
    beside = f"{max(noises):.1e} in the control" if noises else "no control"
    where = f", most at step {at}" if at and apart else ""
    return Verdict(
        check="V2",
        name="losses, relative",
        measured=apart,
        limit=allowed,
        sentence=f"losses differ by {apart:.1e} from the reference's{where} ({beside})",
    )


def memory(peak_bytes: int | None, device_bytes: int | None) -> Verdict | None:
    """Compare a rank's peak memory with its device's; None where either is not known."""
    if not peak_bytes or not device_bytes:
        return None
    share = peak_bytes / device_bytes
    return Verdict(
        check="memory",
        name="share of the device",
        measured=share,
        limit=LARGEST_MEMORY_SHARE,
        sentence=f"{peak_bytes / 2**30:.1f} of {device_bytes / 2**30:.1f} GiB are in use",
    )


def classify_own_job(verdicts: Sequence[Verdict], *, same_layout: bool) -> Classified:
    """Return the class that a user's own job proves of a layout.

    * exact: the reference's own layout, whose state comes back from a checkpoint bit for bit (V1).
    * numerical: V1 of the switches there and back, V7, V12, and the losses.
    * none: anything else; statistical needs seeds (V8), which one run does not have.
    """
    failed = [each for each in verdicts if not each.ok]
    passed = {each.check for each in verdicts} - {each.check for each in failed}
    if failed:
        return Classified(
            equivalence=Equivalence.NONE, because="; ".join(each.sentence for each in failed)
        )
    if same_layout and "V1" in passed:
        return Classified(equivalence=Equivalence.EXACT, because="the reference's own layout")
    missing = sorted({"V1", *NOISY} - passed)
    if missing:
        return Classified(
            equivalence=Equivalence.NONE, because=f"not checked: {', '.join(missing)}"
        )
    return Classified(
        equivalence=Equivalence.NUMERICAL, because=f"{', '.join(sorted(passed))} hold"
    )
