"""The grid signals: polling, history, forecast.

The map:
    exogenous_poller.py  polls one provider of wind, sun, load or weather
    forecast_parts.py  the parts of our forecast, by source
    forecaster.py      our own forecast of a signal
    grid.py            opens the signals that the settings name
    history.py         the stored history of a signal, on its intervals
    lines.py           the signals as screens show them
    past.py            the known past of a signal, read once
    poller.py          polls one provider
    weather.py         what the weather makes of a signal's hours ahead, asked of the child
    weather_child.py   the forecasting process
    weather_wire.py    a question to it, and its answer
    slot_prices.py     the intensity that a ledger slot is priced with
"""
