"""Casts between floating-point dtypes in NumPy, bit for bit as torch rounds them on a CPU.

bfloat16 is represented as uint16, because NumPy has no such dtype.
"""

import numpy as np

from wattmesh.reconfig.universal.exports.stream import Cast, Values, keep

_NAN_ABOVE = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_QUIET = np.uint32(0x0040)


def cast_of(stored: str, wanted: str) -> Cast:
    """Return the cast from `stored` to `wanted`."""
    if stored == wanted:
        return keep
    if stored == "bfloat16":
        return to_float32
    if wanted == "float32":
        return _narrow
    return lambda values: to_bfloat16(_narrow(values))


def to_bfloat16(values: Values) -> Values:
    """Round float32 to bfloat16 (as uint16), to nearest and to even on ties; NaN stays NaN.

    A NaN keeps its sign and upper payload bits and becomes quiet, as in IEEE 754.
    """
    bits = values.view(np.uint32)
    carried = bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))
    nan = (bits & _MAGNITUDE) > _NAN_ABOVE
    rounded = np.where(nan, bits >> 16 | _QUIET, carried >> 16)
    return rounded.astype("<u2")


def to_float32(values: Values) -> Values:
    """Widen bfloat16 (as uint16) to float32, exactly."""
    return (values.astype(np.uint32) << 16).view("<f4")


def _narrow(values: Values) -> Values:
    """Cast float64 or float16 to float32; too large values become infinite, as in torch."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype("<f4", copy=False)
