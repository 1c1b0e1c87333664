"""What each provider serves and needs, for checking settings and for the user. Pure.

Invariant: a key of a source is read only by the providers that name it here.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """The properties of one provider.

    Attributes:
        serves: the region and kind of its numbers, as half a sentence.
        needs: required keys of a source.
        reads: optional keys. Every provider reads provider, zone and stale_after_s.
        terms: how to get a key, and the terms of use of the data.
    """

    serves: str
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    terms: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that only providers naming them may have."""
        return self.needs + self.reads


DECLARED = ("kind", "factor", "gas")

PROVIDERS: Mapping[str, ProviderFacts] = {
    "neso": ProviderFacts(
        serves="Great Britain (GB), average, direct, CO2, half-hourly, forecast of 48 h; its "
        "regions (1 to 17, or a postcode like RG10) as forecasts only",
        reads=("base_url",),
        terms="no key; CC BY 4.0: name NESO's Carbon Intensity API where you show it",
    ),
    "electricity_maps": ProviderFacts(
        serves="some 350 zones of the world, average, lifecycle or direct, CO2eq, hourly, "
        "forecast with a paid plan",
        needs=("key_file",),
        reads=("base_url", "factor", "granularity", "api_version"),
        terms="key from electricitymaps.com; the free plan is one zone and non-commercial",
    ),
    "watttime": ProviderFacts(
        serves="regions of the world, marginal, direct, CO2, every 5 minutes, forecast of 72 h; "
        "co2_aoer: average, hourly, history only",
        needs=("username", "password_file"),
        reads=("base_url", "signal_type"),
        terms="user from POST api.watttime.org/register; only CAISO_NORTH is free of charge",
    ),
    "eia930": ProviderFacts(
        serves="US balancing authorities (CISO, PJM, ERCO...), average, direct, CO2, hourly, "
        "derived from the mix about a day late, without imports and without a forecast",
        needs=("key_file",),
        reads=("base_url", "eia930"),
        terms="free key from eia.gov/opendata; US public domain: name EIA where you show it",
    ),
    "entsoe": ProviderFacts(
        serves="European bidding zones (DE, FR, PL, ES... or a code of 16 characters), average, "
        "direct, CO2, hourly, derived from the mix within hours, without imports and without a "
        "forecast",
        needs=("key_file",),
        reads=("base_url", "entsoe"),
        terms="free token from transparency.entsoe.eu, API access by mail; CC BY 4.0: name ENTSO-E "
        "where you show it",
    ),
    "open_electricity": ProviderFacts(
        serves="Australia (NEM, its regions NSW1, QLD1, SA1, TAS1, VIC1, and WEM), average, "
        "direct, CO2eq, hourly, from energy and emissions of the units, without imports and "
        "without a forecast",
        needs=("key_file",),
        reads=("base_url",),
        terms="free key from platform.openelectricity.org.au; CC BY-NC 4.0: name Open Electricity; "
        "commercial use by agreement with them",
    ),
    "static": ProviderFacts(
        serves="one number of yours for every hour; decisions hold on it",
        needs=("g_per_kwh", *DECLARED),
        terms="yours",
    ),
    "http_json": ProviderFacts(
        serves="any service that answers JSON, as you declare it",
        needs=("http_json", *DECLARED),
        reads=("token_file",),
        terms="those of the service",
    ),
    "csv": ProviderFacts(
        serves="a recorded trace, played back in real or compressed time",
        needs=("file",),
        reads=("starts_at", "plays_at", "compress"),
        terms="those of the recording",
    ),
}


def readers(key: str) -> tuple[str, ...]:
    """Return the providers that read a key; none when all do."""
    return tuple(name for name, facts in PROVIDERS.items() if key in facts.keys)
