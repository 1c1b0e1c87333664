"""From settings to a carbon source; the one place that knows every provider.

Invariant: a choice that no provider can serve is refused here, with what is allowed, before
anything is asked of a network.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.csv_replay import CsvReplay
from wattmesh.integrations.carbon.neso import BASE_URL, Neso
from wattmesh.integrations.carbon.neso import ZONES as NESO_ZONES
from wattmesh.telemetry.carbon import CarbonSource

PROVIDERS = ("csv", "neso")

ZONES = {"neso": NESO_ZONES}
"""Zones that a live provider serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """What is needed to open a source; the csv part is read for csv only.

    Attributes:
        starts_at: recorded moment that plays first; None: the recording's beginning.
        plays_at: when it plays; None: now. `compress`: recorded seconds per second.
        base_url: neso: another address than the provider's own (a mirror, a test server).
    """

    provider: str
    zone: str
    file: Path | None = None
    starts_at: datetime | None = None
    plays_at: datetime | None = None
    compress: float = 1.0
    base_url: str = BASE_URL


def carbon_source(settings: SourceSettings, now: datetime) -> CarbonSource:
    """Open a source; nothing is fetched before its first poll.

    Raises:
        InputInvalid: unknown provider or zone, or a trace that cannot be used; says what is
            allowed.
    """
    if settings.provider == "neso":
        return Neso(zone=settings.zone, base_url=settings.base_url)
    if settings.provider != "csv":
        raise InputInvalid(
            f"{settings.provider!r} is not a carbon provider; there are {', '.join(PROVIDERS)}"
        )
    if settings.file is None:
        raise InputInvalid("provider csv needs `file`, the recorded trace")
    return CsvReplay(
        settings.file,
        zone=settings.zone,
        starts_at=settings.starts_at,
        plays_at=settings.plays_at or now,
        compress=settings.compress,
    )
