"""The grid signals: asked for, foretold, shown.

The map:
    forecast_parts.py  what each source alone said in a forecast of ours
    forecaster.py      what we forecast of a signal ourselves
    grid.py            the grid signals as the settings name them
    history.py         the stored history of a signal laid on its grid
    lines.py           the grid signals as people see them
    past.py            what is known of a signal's past, read once
    poller.py          one provider's series made into polls
    slot_prices.py     what a ledger slot is priced with
"""
