"""Providers of grid carbon intensity, all behind `wattmesh.telemetry.carbon.Provider`.

The map:
    sources.py     one provider from what the settings say
    csv_replay.py  a recorded trace, played back in real or compressed time
    trace.py       the file format of recorded traces
    providers.py   what each provider serves and needs
    neso.py, neso_region.py
                   the live NESO Carbon Intensity API (Great Britain, no key), and its regions
    electricity_maps.py, electricity_maps_answers.py
                   Electricity Maps, by key: average intensity of most of the world
    watttime.py, watttime_answers.py
                   WattTime, by login: marginal rates, and hourly averages of the past
    eia930.py, fuel_mix.py
                   US balancing authorities: an intensity derived from EIA-930's mix
    http_json.py, json_shape.py
                   any service that answers JSON, as its settings declare it
    static.py      one declared number
    http.py        JSON over HTTP with deadlines, retries and limits
    answers.py     what an answer other than 200 means
    breaker.py     leaves a provider alone that keeps failing
    credentials.py keys and passwords, which travel and are never shown
    rows.py        from a provider's rows to points
    believed.py    which values are believed, and why not
"""
