"""The settings file: read, checked, shown.

The map:
    carbon.py           the keys of `[carbon]`: which grid signals to account with and to decide on
    carbon_checks.py    checks the keys of a `[carbon]` table together
    checks.py           checks keys of several tables together
    demand_response.py  the keys of `[demand_response]`: caps in dirty or dear hours
    exogenous.py        the keys of `[[carbon.exogenous]]`: forecasts of wind, sun, load and weather
    exogenous_checks.py checks these keys
    expert_sweep.py     reads the offline sweep that a run's settings name
    journal_address.py  the address of the journal
    model.py            every key of the settings file: its type, its default, and what it means
    node_meter_checks.py checks the keys of `[power.node_meter]`
    read.py             reads and checks the file; names all mistakes at once
    secrets.py          checks and reads files with secrets
    section.py          the base of every table, and types of values
    text.py             writes the sample file and the list of keys
    web_address.py      checks an http(s) address
    mistakes.py         mistakes as sentences
    paths_and_times.py  reads paths and times of the file
"""
