"""Carries the forecast with exogenous series on, by the one from the past alone. Pure Python.

Beyond the hours whose weather is forecast, our own forecast takes over as if those hours had been
observed as they are expected: it then starts from tomorrow's wind, not from yesterday's. Its band
is that of its real distance. In the first hours the newest value says more than the weather: there
our own forecast, which has lessons for each distance, has a part in the mean.

Invariant: from `len(NEAR)` hours on, what the exogenous forecast says stays.
"""

import math
from collections.abc import Sequence

from wattmesh.policies.forecast.predict import Lessons

NEAR = (0.75, 0.55, 0.4, 0.3, 0.2, 0.1)
"""Share of the forecast from the past alone in the first, second, ... hour."""


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
    alone, low, high = past.expect(values, clock)
    told = [
        [
            share * own[at] + (1.0 - share) * row[at]
            for at, share in zip(range(count), (*NEAR, *[0.0] * count), strict=False)
        ]
        for row, own in zip(told, (alone, low, high), strict=True)
    ]
    after = past.expect([*values, *told[0]], clock)[0]
    further = range(count, len(alone))
    return [
        [*told[0], *(after[at - count] for at in further)],
        *(
            [*row, *(after[at - count] * edge[at] / max(alone[at], 1e-9) for at in further)]
            for row, edge in ((told[1], low), (told[2], high))
        ),
    ]
