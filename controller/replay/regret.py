"""What our plan lost against hindsight, and to what: the forecast, or the planning.

A run is not followed as planned once: every hour a new plan answers what the run and the grid have
come to, so no single plan and no single forecast can be blamed. What can be asked is what the same
decisions would have emitted had they known the grid, on the same start, work, deadline and noise.

    lost = grams as it went - bound
         = planning: grams with a perfect forecast - bound
         + forecast: the rest

Invariant: the parts sum to what was lost; planning is never below 0, for nobody beats the bound.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Shares of the grams of `static-fastest`. `forecast` may be negative: errors may cancel."""

    planning: float
    forecast: float


def regret(carbon_g: float, *, foreseen_g: float, bound_g: float, base_g: float) -> Regret:
    """Split what was lost.

    Args:
        carbon_g: as it went.
        foreseen_g: the same run, decided with a perfect forecast.
        bound_g: nobody emits less.
        base_g: of `static-fastest`.
    """
    return Regret(
        planning=(foreseen_g - bound_g) / base_g, forecast=(carbon_g - foreseen_g) / base_g
    )
