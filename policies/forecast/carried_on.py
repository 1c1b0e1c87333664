"""Carries the forecast with exogenous series on, by the one from the past alone. Pure Python.

Beyond the hours whose weather is forecast, our own forecast takes over as if those hours had been
observed as they are expected: it then starts from tomorrow's wind, not from yesterday's. Its band
is that of its real distance.

Invariant: what the exogenous forecast says stays; nothing is said where it says nothing.
"""

import math
from collections.abc import Sequence

from wattmesh.policies.forecast.predict import Lessons


def carried_on(
    told: Sequence[Sequence[float]], values: Sequence[float], clock: int, past: Lessons
) -> list[list[float]]:
    """Give value, 10 % and 90 % quantile of as many hours as `past` forecasts.

    Args:
        told: the same by `Foresight.expect`, NaN from some hour on.
        values: the observed hours.
        clock: hour of the day, UTC, in which the first starts.
        past: what the series alone taught.
    """
    count = next((at for at, each in enumerate(told[0]) if math.isnan(each)), len(told[0]))
    if not count:
        return [list(row) for row in told]
    after = past.expect([*values, *told[0][:count]], clock)[0]
    alone, low, high = past.expect(values, clock)
    further = range(count, len(alone))
    return [
        [*told[0][:count], *(after[at - count] for at in further)],
        *(
            [*row[:count], *(after[at - count] * edge[at] / max(alone[at], 1e-9) for at in further)]
            for row, edge in ((told[1], low), (told[2], high))
        ),
    ]
