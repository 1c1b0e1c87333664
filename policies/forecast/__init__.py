"""Forecasts of the grid (docs/forecast.md). Pure.

The map:
    anchored.py       the anchored profile: last week's hours, shifted to the newest value
    climatology.py    the usual day; far ahead, a forecast fades into it
    forecast_band.py  the grid at both edges of the forecast band
    learned.py        our own forecast, learned from the series itself
    lookback.py       the features of the learned forecast
    predict.py        the forecast that plans use: all sources, weighted by skill
    series.py         the observed values of one carbon series
    skill.py          the measured errors of each source
"""
