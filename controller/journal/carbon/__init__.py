"""Grid signals in the journal: points, forecasts and what drives the grid.

The map:
    exogenous.py  forecasts of wind, sun, load and weather, append-only, by when they were known
    forecasts.py  forecasts as they were issued, and the errors of their sources
    points.py     observed intensities, append-only, and the results of polls
"""
