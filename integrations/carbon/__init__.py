"""Providers of grid carbon intensity, all behind `wattmesh.telemetry.carbon.Provider`.

The map:
    grid_server/                 a local server that answers like the carbon providers, their faults
                                 too; no part of the product imports it
    reading/                     reading what carbon services answer
    csv_replay.py                a recorded trace, played back in real or compressed time
    eia930.py                    the average intensity of a US balancing authority, derived from
                                 what it generates
    electricity_maps.py          Electricity Maps, API v4 (v3 by `api_version`)
    electricity_maps_answers.py  what Electricity Maps' answers say, and when they are not what was
                                 asked for
    http_json.py                 a series from any service that answers JSON
    neso.py                      great Britain's national carbon intensity, live
    neso_region.py               a region of Great Britain
    providers.py                 what each provider serves and needs
    sources.py                   one provider from what the settings say
    static.py                    one declared number
    watttime.py                  wattTime, API v3: the marginal emission rate of a region, and its
                                 hourly average, by login
    watttime_answers.py          what WattTime's answers say, and when they are not what was asked
                                 for
"""
