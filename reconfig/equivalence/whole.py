"""Compares two unsharded states as arrays: V1 bitwise, V2, V7 and V12 to rounding. Pure (numpy).

Invariant: a name that only one side has, another shape or another dtype is a difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.reconfig.equivalence.verdict import Verdict

Arrays = Mapping[str, NDArray[Any]]

FP64_LIMIT = 1e-12
"""Losses and state of a run in fp64 (docs/convergence.md, T1)."""

GRADIENT_LIMITS = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2}
"""One step's gradient summed in two orders, relative, by the dtype of the reductions (T2)."""


PARAMETERS = "parameters"
"""The quantity of how far a step moved the parameters."""

LENGTH, ALONG_WEIGHTS = "length of the move", "move along the weights"
"""Quantities of that move along one direction: the reference's move, as another learning rate has
it, and the parameters themselves, as another weight decay has it. Noise is not in one direction,
so that such a harm shows there far below the noise of the whole move."""

_WEIGHTS = "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeState:
    """The unsharded state of a job.

    Attributes:
        arrays: by name; dtypes that numpy lacks are widened without loss.
        dtypes: by name, the dtype in the job.
        plain: values that are not tensors (settings of the optimizer, schedules, the position).
        disputed: names with different values on different ranks.
    """

    arrays: Arrays
    dtypes: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict)
    disputed: tuple[str, ...] = ()


def differing(before: WholeState, after: WholeState) -> list[str]:
    """List every name whose bits, shape, dtype or plain value differ, in order."""
    found = set(before.disputed) | set(after.disputed)
    for key in set(before.arrays) | set(after.arrays):
        same_dtype = before.dtypes.get(key) == after.dtypes.get(key)
        if not (same_dtype and _same_bits(before.arrays.get(key), after.arrays.get(key))):
            found.add(key)
    # repr, because nan differs from itself and 1 equals True.
    keys = set(before.plain) | set(after.plain)
    found |= {key for key in keys if repr(before.plain.get(key)) != repr(after.plain.get(key))}
    return sorted(found)


def round_trip(before: WholeState, after: WholeState, *, what: str = "the switch") -> Verdict:
    """V1: the state after a reshard equals the state before it, bit for bit."""
    wrong = differing(before, after)
    count = len(set(before.arrays) | set(after.arrays))
    if not before.arrays:
        return Verdict(
            check="V1",
            name="tensors that differ",
            measured=math.inf,
            limit=0,
            sentence="nothing was gathered, so nothing was compared",
        )
    told = f"of {count} tensors and values differ after {what}"
    return _none_of("tensors that differ", wrong, told)


def tied(whole: WholeState, ties: Mapping[str, str]) -> Verdict:
    """V1 for tied tensors: every alias equals its partner, bit for bit."""
    arrays = whole.arrays
    wrong = [
        alias
        for alias, name in sorted(ties.items())
        if alias not in arrays or not _same_bits(arrays[alias], arrays.get(name))
    ]
    return _none_of("ties broken", wrong, f"of {len(ties)} tied tensors differ from their partner")


def without_padding(whole: WholeState, rows: Mapping[str, int]) -> tuple[WholeState, Verdict]:
    """V1 for padded tensors: remove padding rows, and check that they are zero.

    A layout that pads the vocabulary has rows that other layouts do not have. They are not part of
    the logical state, but a weight or moment there that is not zero was trained.

    Args:
        whole: as gathered, with padding.
        rows: number of rows without padding, by name.
    """
    cut = {key: array[: rows[key]] if key in rows else array for key, array in whole.arrays.items()}
    dirty = sorted(
        key
        for key, true in rows.items()
        if key not in whole.arrays or np.any(whole.arrays[key][true:])
    )
    told = f"of {len(rows)} padded tensors hold values in their padding"
    verdict = _none_of("padding in use", dirty, told)
    trimmed = WholeState(
        arrays=cut, dtypes=whole.dtypes, plain=whole.plain, disputed=whole.disputed
    )
    return trimmed, verdict


def relative(found: float, reference: float) -> float:
    """Relative difference of two figures; inf when either is not a number."""
    if found == reference:
        return 0.0
    gap = abs(found - reference) / max(abs(reference), math.ulp(1.0))
    return gap if math.isfinite(gap) else math.inf


def worst_array(found: Arrays, reference: Arrays) -> tuple[float, str]:
    """Return the largest max |a - b| / max |b| of any array, and that array's name."""
    worst, name = 0.0, ""
    for key in sorted(set(found) | set(reference)):
        gap = _array_gap(found.get(key), reference.get(key))
        if not gap <= worst:
            worst, name = gap, key
    return worst, name


def close_states(found: WholeState, reference: WholeState, *, limit: float = FP64_LIMIT) -> Verdict:
    """V2 for states: every array of two runs is equal to rounding, relative to its largest value.

    The largest value is the scale because an element near 0 may lose all its digits when a sum is
    reordered.
    """
    gap, name = worst_array(found.arrays, reference.arrays)
    if not reference.arrays or found.disputed:
        gap, name = math.inf, next(iter(found.disputed), "nothing was gathered")
    return Verdict(
        check="V2",
        name="state, relative",
        measured=gap,
        limit=limit,
        sentence=f"the states differ by {gap:.2e}, most in {name or 'nothing'}",
    )


def close_curves(
    found: Mapping[int, float], reference: Mapping[int, float], *, limit: float = FP64_LIMIT
) -> Verdict:
    """V2 for losses: two curves have the same steps and, to rounding, the same values."""
    gap, at = 0.0, -1
    for step in sorted(set(found) | set(reference)):
        here = relative(found.get(step, math.nan), reference.get(step, math.nan))
        if here > gap:
            gap, at = here, step
    if not reference:
        gap = math.inf
    where = f", most at step {at}" if at >= 0 else ""
    return Verdict(
        check="V2",
        name="losses, relative",
        measured=gap,
        limit=limit,
        sentence=f"{len(reference)} losses differ by {gap:.2e} at most{where}",
    )


def close_gradients(found: Arrays, reference: Arrays, *, dtype: str) -> Verdict:
    """V7: the gradient of one step from one state, in two layouts, by its Euclidean norm.

    Args:
        found: by parameter.
        reference: the same step in another layout.
        dtype: of the reductions; chooses the limit.
    """
    gap, told = gradient_gap(found, reference)
    return Verdict(
        check="V7",
        name="one gradient, relative",
        measured=gap,
        limit=GRADIENT_LIMITS[dtype],
        sentence=f"the gradients of one step differ by {gap:.2e} of their norm{told}",
    )


def gradient_gap(found: Arrays, reference: Arrays) -> tuple[float, str]:
    """Return how far two gradients are apart, relative to the norm of `reference`.

    Returns:
        The gap, inf where it is no number; and a clause with the first parameter that only one
        side has, or "".
    """
    missing = sorted(set(found) ^ set(reference))
    if missing or not reference:
        return math.inf, f"; only one side has {missing[0]}" if missing else ""
    apart = sum(
        float(np.sum(np.square(np.subtract(found[key], each, dtype=np.float64))))
        for key, each in reference.items()
    )
    size = sum(float(np.sum(np.square(each, dtype=np.float64))) for each in reference.values())
    gap = math.sqrt(apart / size) if size > 0 else (math.inf if apart else 0.0)
    return gap if math.isfinite(gap) else math.inf, ""


def change_of_step(before: WholeState, after: WholeState) -> WholeState:
    """Return what a step made: how far it moved each parameter, and each slot as it is after it.

    Its plain value is how far the parameters moved along themselves: their dot product with the
    move, over their norm.
    """
    moved = {
        name: after.arrays[name] - array
        for name, array in before.arrays.items()
        if name in after.arrays
    }
    weights = {name: before.arrays[name] for name in moved}
    size = _dot(weights, weights)
    along = _dot(moved, weights) / math.sqrt(size) if size > 0 else 0.0
    return WholeState(arrays={**after.arrays, **moved}, plain={_WEIGHTS: along})


def quantity_of(name: str) -> str:
    """Return of what an array is a part: "gradient", `PARAMETERS`, or the name of a slot."""
    if name.startswith("grad."):
        return "gradient"
    return PARAMETERS if name.startswith("param.") else name.rpartition(".")[2]


def step_gaps(found: WholeState, reference: WholeState) -> dict[str, float]:
    """V12: how far two steps' changes are apart, relative to the reference's norm, by quantity.

    Both are of `change_of_step`.
    """
    parts: dict[str, tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]] = {}
    for side, whole in enumerate((found, reference)):
        for name, array in whole.arrays.items():
            parts.setdefault(quantity_of(name), ({}, {}))[side][name] = array
    gaps = {each: gradient_gap(*sides)[0] for each, sides in parts.items()}
    if not math.isfinite(gaps.get(PARAMETERS, math.inf)):
        return gaps
    mine, other = parts[PARAMETERS]
    size = _dot(other, other)
    if size > 0:
        gaps[LENGTH] = abs(_dot(mine, other) / size - 1)
        along = [float(each.plain.get(_WEIGHTS, math.nan)) for each in (found, reference)]
        apart = abs(along[0] - along[1]) / math.sqrt(size)
        gaps[ALONG_WEIGHTS] = apart if math.isfinite(apart) else math.inf
    return gaps


def _dot(one: Arrays, other: Arrays) -> float:
    """Return the dot product over all arrays of `other`."""
    return sum(
        float(np.vdot(one[name].astype(np.float64), each.astype(np.float64)))
        for name, each in other.items()
    )


def _none_of(name: str, wrong: Sequence[str], told: str) -> Verdict:
    """Build a V1 verdict from a list that must be empty; `told` follows the count."""
    first = f"; the first: {wrong[0]}" if wrong else ""
    return Verdict(
        check="V1",
        name=name,
        measured=len(wrong),
        limit=0,
        sentence=f"{len(wrong)} {told}{first}",
    )


def _same_bits(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    if one is None or other is None:
        return False
    same_kind = (one.dtype, one.shape) == (other.dtype, other.shape)
    return same_kind and one.tobytes() == other.tobytes()


def _array_gap(found: NDArray[Any] | None, reference: NDArray[Any] | None) -> float:
    if found is None or reference is None or found.shape != reference.shape:
        return math.inf
    if not reference.size:
        return 0.0
    apart = float(np.max(np.abs(np.subtract(found, reference, dtype=np.float64))))
    size = float(np.max(np.abs(reference)))
    if apart == 0:
        return 0.0
    gap = apart / size if size > 0 else math.inf
    return gap if math.isfinite(gap) else math.inf
