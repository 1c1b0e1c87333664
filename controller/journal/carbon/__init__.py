"""Grid signals in the journal: points and forecasts.

The map:
    forecasts.py  forecasts as they were issued, and the errors of their sources
    points.py     observed intensities, append-only, and the results of polls
"""
