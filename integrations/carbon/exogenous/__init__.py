"""Exogenous series: wind, sun, load and weather, behind `telemetry.exogenous.ExogenousProvider`.

The map:
    collected.py       makes hours of a provider's values, and refuses what cannot be true
    eia930.py          EIA-930: the load of US balancing authorities
    entsoe.py          ENTSO-E's platform: wind, solar, load and prices of European zones
    neso.py            NESO: the wind of Great Britain
    neso_portal.py     asks NESO's data portal
    open_meteo.py      Open-Meteo: the weather, without a key
    opened.py          opens them from settings
"""
