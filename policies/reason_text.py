"""Times and points as the sentences of decisions say them. Pure.

Invariant: every text that comes out is one line.
"""

from datetime import UTC, datetime, timedelta

from wattmesh.reconfig.catalogue import OperatingPoint
from wattmesh.telemetry.readings import J_PER_KWH


def moment(at: datetime, now: datetime) -> str:
    """Write a time as a person near `now` needs it, in UTC: with seconds, as HH:MM, with a date."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    away = abs(at - now)
    if away < timedelta(minutes=10):
        return f"{at:%H:%M:%S} UTC"
    if at.date() == now.date():
        return f"{at:%H:%M} UTC"
    if away < timedelta(days=6):
        return f"{at:%a %H:%M} UTC"
    return f"{at:%Y-%m-%d %H:%M} UTC"


def point(which: OperatingPoint) -> str:
    """Name a point so that nobody has to look it up: `B (tp2 on 2 GPUs)`."""
    clock = f" @{which.clock_mhz} MHz" if which.clock_mhz is not None else ""
    return f"{which.id} ({which.layout}{clock} on {which.gpus} GPU{'s'[: which.gpus != 1]})"


def clause(text: str) -> str:
    """Make somebody else's sentence fit inside ours: one line, no period at its end."""
    return " ".join(text.split()).rstrip(". ")


def g_per_kwh(g_per_joule: float) -> float:
    """Convert an intensity from grams per joule."""
    return g_per_joule * J_PER_KWH
