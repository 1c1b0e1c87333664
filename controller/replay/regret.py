"""What our plan lost against hindsight: to the forecast, or to the planning.

No single plan is followed through: every hour a new plan answers where the run and the grid are by
then, so no single plan or forecast can be blamed. Instead we ask what the same decisions would have
emitted with the grid known, on the same start, work, deadline and noise.

    lost = actual grams - bound
         = planning: grams with a perfect forecast - bound
         + forecast: the rest

Invariant: the parts sum to what was lost; planning is never below 0, as no run emits less than the
bound.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Shares of the grams of `static-fastest`. `forecast` may be negative: errors may cancel."""

    planning: float
    forecast: float


def regret(carbon_g: float, *, foreseen_g: float, bound_g: float, base_g: float) -> Regret:
    """Split what was lost into planning and forecast.

    Args:
        carbon_g: of the run as replayed.
        foreseen_g: of the same run, decided with a perfect forecast.
        bound_g: no run emits less.
        base_g: of `static-fastest`.
    """
    return Regret(
        planning=(foreseen_g - bound_g) / base_g, forecast=(carbon_g - foreseen_g) / base_g
    )
