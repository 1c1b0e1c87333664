"""Forecasts of the grid (docs/forecast.md). Pure.

The map:
    anchored.py       the anchored profile: last week's hours, shifted to the newest value
    carried_on.py     carries the forecast with exogenous series on beyond them
    climatology.py    the usual day; far ahead, a forecast fades into it
    exogenous.py      exogenous forecasts beside a series, and the features of both
    forecast_band.py  the grid at both edges of the forecast band
    foresight.py      our forecast with exogenous series
    foresight_band.py the quantiles of its errors
    kernel_ridge.py   the regression that it is made of
    learned.py        our own forecast, learned from the series itself
    lookback.py       the features of the learned forecast
    predict.py        the forecast that plans use: all sources, weighted by skill
    series.py         the observed values of one carbon series
    skill.py          the measured errors of each source
    weather_forecaster.py  forecasts with exogenous series, and learns from how that went
"""
