"""Answers of providers that forecast what drives a grid, each as that provider gives them.

The map:
    eia930_demand.py   EIA-930: demand, and the authorities' day-ahead forecasts of it
    neso_portal.py     NESO's data portal: the wind of Great Britain
    open_meteo.py      Open-Meteo: the weather

ENTSO-E's documents are made by `entsoe.py` above, which serves its generation too.
"""
