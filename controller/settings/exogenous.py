"""The keys of `[[carbon.exogenous]]`: forecasts of wind, sun, load and weather beside a signal.

Invariant: secrets are never in the file itself; the token stands in a file of its own.
"""

from typing import Literal

from pydantic import Field

from wattmesh.controller.settings.section import File, Section
from wattmesh.integrations.carbon.exogenous.open_meteo import Place
from wattmesh.integrations.carbon.exogenous.opened import ExogenousSettings


class PlaceSection(Section):
    """A place whose weather counts."""

    latitude: float = Field(ge=-90, le=90, examples=[54.3])
    """Degrees north of the equator; below 0 south of it."""
    longitude: float = Field(ge=-180, le=180, examples=[9.7])
    """Degrees east of Greenwich; below 0 west of it."""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """Share of the place in the mean of the zone, against the other places."""


class ExogenousSection(Section):
    """One provider of forecasts that tell what the grid will do."""

    provider: Literal["entsoe", "eia930", "neso", "open_meteo"] = Field(examples=["entsoe"])
    """`entsoe` (day-ahead wind, sun and load of European zones), `eia930` (day-ahead load of US
    balancing authorities), `neso` (wind of Great Britain, without a key) or `open_meteo` (the
    weather at places of yours, without a key; free of charge for non-commercial use)."""
    zone: str = Field(examples=["DE"])
    """Zone, as the provider names it: for eia930 an authority like CISO, for neso GB, for
    open_meteo a name of yours."""
    token_file: File | None = Field(default=None, examples=["/etc/wattmesh/entsoe.token"])
    """entsoe, eia930: file with the security token or API key, readable by its owner only (mode
    0600)."""
    label: Literal["", "ending", "starting"] = Field(default="", examples=["ending"])
    """eia930: whether an hour is labelled by its `ending`, as EIA documents, or by its `starting`,
    as some authorities do; default: ending."""
    prices: bool = False
    """entsoe: also ask for the zone's day-ahead prices (EUR/MWh), which `demand_response.price`
    follows."""
    places: tuple[PlaceSection, ...] = Field(default=(), strict=False)
    """open_meteo: 1 to 50 places where the zone's wind and sun are."""
    base_url: str = Field(default="", examples=["https://web-api.tp.entsoe.eu"])
    """Another address of the same API, e.g. a mirror inside the cluster."""
    past_url: str = Field(default="", examples=["https://previous-runs-api.open-meteo.com"])
    """open_meteo: another address of its previous runs; default: `base_url`, where that is set."""

    def settings(self) -> ExogenousSettings:
        """Give what opening the provider needs.

        Raises:
            InputInvalid: a place that cannot be.
        """
        return ExogenousSettings(
            provider=self.provider,
            zone=self.zone,
            token_file=self.token_file,
            label=self.label,
            prices=self.prices,
            places=tuple(
                Place(latitude=each.latitude, longitude=each.longitude, weight=each.weight)
                for each in self.places
            ),
            base_url=self.base_url,
            past_url=self.past_url,
        )
