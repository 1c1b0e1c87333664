"""Opens a provider of exogenous series from settings; knows each of them.

Invariant: an unknown choice is refused before any request; a secret is read from its file and
passed on, and kept nowhere else.
"""

from dataclasses import dataclass
from pathlib import Path

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.exogenous import open_meteo
from wattmesh.integrations.carbon.exogenous.entsoe import Entsoe
from wattmesh.integrations.carbon.exogenous.open_meteo import OpenMeteo, Place
from wattmesh.integrations.carbon.reading.entsoe_platform import BASE_URL as ENTSOE_URL
from wattmesh.integrations.carbon.sources import read_secret
from wattmesh.telemetry.exogenous import ExogenousProvider

PROVIDERS = ("entsoe", "open_meteo")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExogenousSettings:
    """The settings of one provider.

    Attributes:
        token_file: entsoe: the file with the security token.
        places: open_meteo: where the zone's wind and sun are.
        base_url: another address of the same API; "": the provider's own.
        past_url: open_meteo: another address of its previous runs.
    """

    provider: str
    zone: str
    token_file: Path | None = None
    places: tuple[Place, ...] = ()
    base_url: str = ""
    past_url: str = ""


def exogenous_provider(settings: ExogenousSettings) -> ExogenousProvider:
    """Open a provider, without any request.

    Raises:
        InputInvalid: the provider, the zone or the places cannot be, or the token cannot be read.
    """
    if settings.provider == "entsoe":
        if settings.token_file is None:
            raise InputInvalid("provider entsoe needs `token_file`, the file with the token")
        return Entsoe(
            zone=settings.zone,
            token=read_secret(settings.token_file),
            base_url=settings.base_url or ENTSOE_URL,
        )
    if settings.provider == "open_meteo":
        return OpenMeteo(
            zone=settings.zone,
            places=settings.places,
            base_url=settings.base_url or open_meteo.BASE_URL,
            past_url=settings.past_url or settings.base_url or open_meteo.PAST_URL,
        )
    raise InputInvalid(
        f"{settings.provider!r} tells no exogenous series; there are {', '.join(PROVIDERS)}"
    )
