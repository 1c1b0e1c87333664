"""What the grid will emit (docs/forecast.md). Pure.

The map:
    anchored.py       the anchored profile: last week's hours, moved to meet the newest value
    climatology.py    the usual day, into which a forecast fades far ahead
    forecast_band.py  the grid at both edges of the forecast band
    learned.py        our own forecast, learned from the series itself
    lookback.py       the features that the learned forecast is a linear function of
    predict.py        the forecast that plans use: every source, weighed by its skill
    series.py         what was observed of one carbon series
    skill.py          the measured errors of each source
"""
