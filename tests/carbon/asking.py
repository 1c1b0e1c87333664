"""What one poll of a provider brings together: the trailing time, then the forecast."""

from datetime import datetime, timedelta

from wattmesh.integrations.carbon.reading.http import RetryPolicy
from wattmesh.telemetry.carbon import CarbonBatch, Provider

PATIENT = RetryPolicy(connect_s=300, read_s=300, try_s=600, pause_s=0.001)
"""The product's tries without its pauses, and deadlines that no answer of a busy machine misses."""


def asked(source: Provider, now: datetime) -> CarbonBatch:
    """Ask for the trailing time and the forecast; what is known already is not expected."""
    series = source.series
    until = now + timedelta(seconds=series.interval_s)
    past = source.history(now - series.trailing, until, now=now)
    if not series.forecast_s:
        return past
    ahead = source.forecast(series.forecast_s / 3600, now=now)
    known = {point.start for point in past.points}
    later = tuple(point for point in ahead.points if point.start not in known)
    return CarbonBatch(
        points=past.points + later,
        refused=tuple(dict.fromkeys((*past.refused, *ahead.refused))),
    )
