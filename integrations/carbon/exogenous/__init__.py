"""Exogenous series: wind, sun, load and weather, behind `telemetry.exogenous.ExogenousProvider`.

The map:
    collected.py       makes hours of a provider's values, and refuses what cannot be true
    entsoe.py          ENTSO-E's transparency platform: wind, solar and load of European zones
    open_meteo.py      Open-Meteo: the weather, without a key
    opened.py          opens them from settings
"""
