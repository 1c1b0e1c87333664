"""Opens a carbon provider from settings; the one module that knows every provider.

Invariant: an unknown choice is refused with a list of the allowed ones before any request; a secret
is read from its file and passed on, and kept nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon import (
    electricity_maps,
    neso,
    open_electricity,
    watttime,
)
from wattmesh.integrations.carbon.csv_replay import CsvReplay
from wattmesh.integrations.carbon.eia930 import Eia930
from wattmesh.integrations.carbon.electricity_maps import ElectricityMaps
from wattmesh.integrations.carbon.entsoe import EntsoeMix
from wattmesh.integrations.carbon.http_json import HttpJson
from wattmesh.integrations.carbon.neso import Neso
from wattmesh.integrations.carbon.neso_region import NesoRegion, is_region
from wattmesh.integrations.carbon.open_electricity import OpenElectricity
from wattmesh.integrations.carbon.providers import PROVIDERS
from wattmesh.integrations.carbon.reading.credentials import NONE, Credentials
from wattmesh.integrations.carbon.reading.eia_api import BASE_URL as EIA_URL
from wattmesh.integrations.carbon.reading.entsoe_platform import BASE_URL as ENTSOE_URL
from wattmesh.integrations.carbon.reading.json_shape import JsonShape
from wattmesh.integrations.carbon.static import Static
from wattmesh.integrations.carbon.watttime import WattTime
from wattmesh.named_file import read_named
from wattmesh.telemetry.carbon import Provider, Signal

MOST_SECRET_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonChoices:
    """The settings of http_json; see `HttpJson` for their meaning."""

    shape: JsonShape
    interval_s: float = 3600.0
    cadence_s: float | None = None
    lag_s: float = 0.0
    forecast_hours: float = 48.0
    longest_hours: float = 240.0
    token_header: str = "Authorization"
    token_scheme: str = "Bearer"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The settings of a source; `providers.PROVIDERS` lists which provider reads which key.

    Attributes:
        starts_at: time in the recording that plays first; None: its beginning.
        plays_at: when that plays; None: now.
        compress: recorded seconds per second.
        base_url: address of a mirror or a test server; "": the provider's own.
        key_file, password_file, token_file: files that hold one secret each.
        factor: direct or lifecycle; "": the provider's default.
        kind, gas: declared for static and http_json.
        eia_factors: emission factors by fuel code, g/kWh, that replace the defaults.
        eia_label: ending or starting.
        entsoe_factors: emission factors by type of production, g/kWh, that replace the defaults.
    """

    provider: str
    zone: str
    file: Path | None = None
    starts_at: datetime | None = None
    plays_at: datetime | None = None
    compress: float = 1.0
    base_url: str = ""
    key_file: Path | None = None
    username: str = ""
    password_file: Path | None = None
    token_file: Path | None = None
    kind: str = ""
    factor: str = ""
    gas: str = ""
    granularity: str = "hourly"
    api_version: str = "v4"
    signal_type: str = "co2_moer"
    g_per_kwh: float | None = None
    eia_factors: Mapping[str, float] = field(default_factory=dict)
    eia_label: str = "ending"
    entsoe_factors: Mapping[str, float] = field(default_factory=dict)
    json: JsonChoices | None = None


def provider(settings: SourceSettings, now: datetime) -> Provider:
    """Open a source, without any request.

    Args:
        settings: of the source.
        now: start time of a recording without `plays_at`, aware.

    Raises:
        InputInvalid: the provider, the zone or a choice is unknown, or a secret or trace cannot be
            read; the message lists what is allowed.
    """
    openers = {
        "csv": lambda: _csv(settings, now),
        "neso": lambda: _neso(settings),
        "electricity_maps": lambda: _electricity_maps(settings),
        "watttime": lambda: _watttime(settings),
        "eia930": lambda: _eia930(settings),
        "entsoe": lambda: _entsoe(settings),
        "open_electricity": lambda: _open_electricity(settings),
        "static": lambda: _static(settings),
        "http_json": lambda: _http_json(settings),
    }
    if settings.provider not in openers:
        raise InputInvalid(
            f"{settings.provider!r} is not a carbon provider; there are {', '.join(PROVIDERS)}"
        )
    return openers[settings.provider]()


def read_secret(path: Path) -> str:
    """Read the secret in a file.

    Raises:
        InputInvalid: it cannot be read; the message does not show its content.
    """
    try:
        return read_named(path, MOST_SECRET_BYTES).decode("utf-8").strip()
    except OSError as error:
        raise InputInvalid(f"{path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        # Not chained: the error quotes bytes of the file.
        problem = f"{path} is not text"
    raise InputInvalid(problem)


def _secret(settings: SourceSettings, key: str) -> str:
    """Read the secret in the file that a key names.

    Raises:
        InputInvalid: no file is named, or it cannot be read.
    """
    path: Path | None = getattr(settings, key)
    if path is None:
        raise InputInvalid(f"provider {settings.provider} needs `{key}`")
    return read_secret(path)


def _csv(settings: SourceSettings, now: datetime) -> Provider:
    if settings.file is None:
        raise InputInvalid("provider csv needs `file`, the recorded trace")
    return CsvReplay(
        settings.file,
        zone=settings.zone,
        starts_at=settings.starts_at,
        plays_at=settings.plays_at or now,
        compress=settings.compress,
    )


def _neso(settings: SourceSettings) -> Provider:
    base_url = settings.base_url or neso.BASE_URL
    if is_region(settings.zone):
        return NesoRegion(zone=settings.zone, base_url=base_url)
    return Neso(zone=settings.zone, base_url=base_url)


def _electricity_maps(settings: SourceSettings) -> Provider:
    return ElectricityMaps(
        zone=settings.zone,
        key=_secret(settings, "key_file"),
        factor=settings.factor or "lifecycle",
        granularity=settings.granularity,
        api_version=settings.api_version,
        base_url=settings.base_url or electricity_maps.BASE_URL,
    )


def _watttime(settings: SourceSettings) -> Provider:
    return WattTime(
        zone=settings.zone,
        username=settings.username,
        password=_secret(settings, "password_file"),
        signal_type=settings.signal_type,
        base_url=settings.base_url or watttime.BASE_URL,
    )


def _eia930(settings: SourceSettings) -> Provider:
    return Eia930(
        zone=settings.zone,
        key=_secret(settings, "key_file"),
        factors_g_per_kwh=settings.eia_factors,
        label=settings.eia_label,
        base_url=settings.base_url or EIA_URL,
    )


def _entsoe(settings: SourceSettings) -> Provider:
    return EntsoeMix(
        zone=settings.zone,
        token=_secret(settings, "key_file"),
        factors_g_per_kwh=settings.entsoe_factors,
        base_url=settings.base_url or ENTSOE_URL,
    )


def _open_electricity(settings: SourceSettings) -> Provider:
    return OpenElectricity(
        zone=settings.zone,
        key=_secret(settings, "key_file"),
        base_url=settings.base_url or open_electricity.BASE_URL,
    )


def _static(settings: SourceSettings) -> Provider:
    if settings.g_per_kwh is None:
        raise InputInvalid("provider static needs `g_per_kwh`, the number")
    return Static(signal=_declared(settings), g_per_kwh=settings.g_per_kwh)


def _http_json(settings: SourceSettings) -> Provider:
    chosen = settings.json
    if chosen is None:
        raise InputInvalid("provider http_json needs `http_json`, the form of requests and answers")
    credentials = NONE
    if settings.token_file is not None:
        token = _secret(settings, "token_file")
        credentials = Credentials.header(chosen.token_header, token, scheme=chosen.token_scheme)
    return HttpJson(
        signal=_declared(settings),
        shape=chosen.shape,
        interval_s=chosen.interval_s,
        cadence_s=chosen.cadence_s,
        lag_s=chosen.lag_s,
        forecast_hours=chosen.forecast_hours,
        longest_hours=chosen.longest_hours,
        credentials=credentials,
    )


def _declared(settings: SourceSettings) -> Signal:
    """Return the signal that the settings declare.

    Raises:
        InputInvalid: a part is missing, or the zone is malformed.
    """
    parts = {"kind": settings.kind, "factor": settings.factor, "gas": settings.gas}
    missing = [name for name, value in parts.items() if not value]
    if missing:
        raise InputInvalid(
            f"provider {settings.provider} needs `{missing[0]}`; answers do not contain it"
        )
    if not settings.zone or ":" in settings.zone:
        raise InputInvalid(f"{settings.zone!r} is not a zone; give it a name without ':'")
    return Signal(provider=settings.provider, zone=settings.zone, **parts)
