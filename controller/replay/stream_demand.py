"""The caps that demand response sets over a recorded grid, for `policy bench --jobs`. Pure.

The same rules as in the daemon, asked every few hours, with the grid ahead known: what a forecast
gets wrong is not in it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.powercap.demand_response import respond
from wattmesh.policies.powercap.triggers import (
    CapWindow,
    SignalSeries,
    SignalSlot,
    Trigger,
    TriggeredCap,
)

EVERY = timedelta(hours=3)
DAY = timedelta(days=1)
KNOWN_AHEAD = timedelta(days=4)
"""Further than any trigger looks, and to the end of that day."""


def triggered_caps(
    trigger: Trigger, slots: Sequence[IntensitySlot], begin: datetime, until: datetime
) -> tuple[CapWindow, ...]:
    """Give the caps of [begin, until), as if the daemon had started a day before.

    Args:
        trigger: the settings; its cap is in watts.
        slots: what the grid was, oldest first.
        begin: where the time that is looked at begins.
        until: where it ends.
    """
    told = [SignalSlot(start=each.start, end=each.end, value=each.g_per_kwh) for each in slots]
    starts = [each.start for each in told]
    found: list[CapWindow] = []
    now = begin - DAY
    while now < until:
        near = told[bisect_left(starts, now - 2 * DAY) : bisect_left(starts, now + KNOWN_AHEAD)]
        caps = [
            TriggeredCap(id=number, start=each.start, until=each.until)
            for number, each in enumerate(found)
            if each.until > now - 2 * DAY
        ]
        series = SignalSeries(name="trace", unit="g/kWh", slots=tuple(near), issued_at=now)
        found += respond(trigger, series, caps, now.astimezone(UTC), highest_w=None).announce
        now += EVERY
    return tuple(each for each in found if each.start < until and each.until > begin)
