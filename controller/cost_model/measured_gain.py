"""What a user's own measured steps do for predictions, in numbers, from these steps alone. Pure.

Invariant: an improvement is only claimed where it was seen: of a measured row that was left out,
predicted by the others.
"""

from dataclasses import dataclass

import numpy as np

from wattmesh.policies.parallelism.measured import Measured, part, with_measurements
from wattmesh.policies.parallelism.predict import CostModel, Predictions, predict

MOST_ROWS = 20
"""Of more rows as many, spread over all, are left out in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGain:
    """What measured rows change.

    Attributes:
        moved: median factor, above 1, by which predicted times change either way.
        narrower: share by which the median interval is narrower.
        before, after: median error, as a share, of a measured row without the others and with
            them; None where there is only one.
    """

    moved: float
    narrower: float
    before: float | None = None
    after: float | None = None


def gain(plain: Predictions, corrected: Predictions) -> MeasuredGain:
    """Compare predictions without and with measured rows; of one row at least."""
    moved = np.exp(np.median(np.abs(np.log(corrected.step_s / plain.step_s))))
    widths = [np.median(np.log(each.high_s / each.low_s)) for each in (plain, corrected)]
    return MeasuredGain(moved=float(moved), narrower=float(1 - widths[1] / widths[0]))


def left_out(model: CostModel, measured: Measured) -> tuple[float, float] | None:
    """Give the median error of a measured row without the others, and with them."""
    count = len(measured.seconds)
    if count < 2:
        return None
    every = np.arange(count)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(int))
    errors = []
    for at in chosen:
        one = part(measured, np.array([at]))
        others = with_measurements(model, part(measured, every[every != at]))
        errors.append(
            [
                abs(float(predict(one.rows, by).step_s[0] / one.seconds[0]) - 1)
                for by in (model, others)
            ]
        )
    before, after = np.median(np.array(errors), axis=0)
    return float(before), float(after)


def gain_lines(found: MeasuredGain) -> list[str]:
    """Say it on a screen."""
    lines = [
        f"predicted times change by a factor of {found.moved:.3g}, and their intervals get "
        f"{found.narrower:.0%} narrower, in the middle"
    ]
    if found.before is None or found.after is None:
        more = "one measured step corrects the others, and a second one would say how well it does"
        return [*lines, more]
    how = "improve" if found.after < found.before else "do not improve"
    return [
        *lines,
        f"measured steps {how} each other's predictions: one that is left out is off by "
        f"{found.after:.1%} with the others, {found.before:.1%} without (median)",
    ]
