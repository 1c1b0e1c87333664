"""Providers of grid carbon intensity, all behind `wattmesh.telemetry.carbon.Provider`.

The map:
    sources.py     one provider from what the settings say
    csv_replay.py  a recorded trace, played back in real or compressed time
    trace.py       the file format of recorded traces
    neso.py        the live NESO Carbon Intensity API (Great Britain, no key)
    http.py        JSON over HTTP with deadlines, retries and limits
    believed.py    which values are believed, and why not
"""
