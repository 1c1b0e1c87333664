"""Providers of grid carbon intensity, all behind `wattmesh.telemetry.carbon.Provider`.

The map:
    sources.py     one provider from what the settings say
    csv_replay.py  a recorded trace, played back in real or compressed time
    trace.py       the file format of recorded traces
    neso.py        the live NESO Carbon Intensity API (Great Britain, no key)
    electricity_maps.py, electricity_maps_answers.py
                   Electricity Maps, by key: average intensity of most of the world
    watttime.py, watttime_answers.py
                   WattTime, by login: marginal rates, and hourly averages of the past
    http.py        JSON over HTTP with deadlines, retries and limits
    answers.py     what an answer other than 200 means
    breaker.py     leaves a provider alone that keeps failing
    credentials.py keys and passwords, which travel and are never shown
    rows.py        from a provider's rows to points
    believed.py    which values are believed, and why not
"""
