"""Opens a provider of exogenous series from settings; knows each of them.

Invariant: an unknown choice is refused before any request; a secret is read from its file and
passed on, and kept nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.exogenous import neso_portal, open_meteo
from wattmesh.integrations.carbon.exogenous.eia930 import Eia930Demand
from wattmesh.integrations.carbon.exogenous.entsoe import Entsoe
from wattmesh.integrations.carbon.exogenous.neso import NesoWind
from wattmesh.integrations.carbon.exogenous.open_meteo import OpenMeteo, Place
from wattmesh.integrations.carbon.reading.eia_api import BASE_URL as EIA_URL
from wattmesh.integrations.carbon.reading.entsoe_platform import BASE_URL as ENTSOE_URL
from wattmesh.integrations.carbon.sources import read_secret
from wattmesh.telemetry.exogenous import ExogenousProvider

READS: Mapping[str, tuple[str, ...]] = {
    "entsoe": ("token_file", "prices"),
    "eia930": ("token_file", "label"),
    "neso": (),
    "open_meteo": ("places", "past_url"),
}
"""The providers, and which keys each reads that others do not."""
WITH_TOKEN = tuple(name for name, keys in READS.items() if "token_file" in keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExogenousSettings:
    """The settings of one provider.

    Attributes:
        token_file: entsoe, eia930: the file with the security token or API key.
        label: eia930: whether an hour is labelled by its `ending` or `starting`; "": ending.
        prices: entsoe: whether day-ahead prices are asked for as well.
        places: open_meteo: where the zone's wind and sun are.
        base_url: another address of the same API; "": the provider's own.
        past_url: open_meteo: another address of its previous runs.
    """

    provider: str
    zone: str
    token_file: Path | None = None
    label: str = ""
    prices: bool = False
    places: tuple[Place, ...] = ()
    base_url: str = ""
    past_url: str = ""


def exogenous_provider(settings: ExogenousSettings) -> ExogenousProvider:
    """Open a provider, without any request.

    Raises:
        InputInvalid: the provider, the zone or the places cannot be, or the token cannot be read.
    """
    if settings.provider in WITH_TOKEN:
        return _with_token(settings)
    if settings.provider == "neso":
        return NesoWind(zone=settings.zone, base_url=settings.base_url or neso_portal.BASE_URL)
    if settings.provider == "open_meteo":
        return OpenMeteo(
            zone=settings.zone,
            places=settings.places,
            base_url=settings.base_url or open_meteo.BASE_URL,
            past_url=settings.past_url or settings.base_url or open_meteo.PAST_URL,
        )
    raise InputInvalid(
        f"{settings.provider!r} tells no exogenous series; there are {', '.join(READS)}"
    )


def _with_token(settings: ExogenousSettings) -> ExogenousProvider:
    """Open a provider that wants a token or key.

    Raises:
        InputInvalid: it cannot be read or is malformed, or the zone cannot be.
    """
    if settings.token_file is None:
        raise InputInvalid(
            f"provider {settings.provider} needs `token_file`, the file with the token"
        )
    token = read_secret(settings.token_file)
    if settings.provider == "eia930":
        return Eia930Demand(
            zone=settings.zone,
            key=token,
            label=settings.label or "ending",
            base_url=settings.base_url or EIA_URL,
        )
    return Entsoe(
        zone=settings.zone,
        token=token,
        prices=settings.prices,
        base_url=settings.base_url or ENTSOE_URL,
    )
