"""Providers of grid carbon intensity, all behind `wattmesh.telemetry.carbon.Provider`.

The map:
    grid_server/                 a local server that answers like the providers, faults included;
                                 the product never imports it
    exogenous/                   day-ahead wind, sun, load and weather
    reading/                     HTTP requests to carbon services, and decoding of answers
    csv_replay.py                replays a recorded trace, in real or compressed time
    eia930.py                    the average intensity of a US balancing authority, from its fuel
                                 mix
    electricity_maps.py          Electricity Maps, API v4 (v3 by `api_version`)
    electricity_maps_answers.py  decodes and checks Electricity Maps' answers
    entsoe.py                    the average intensity of a European zone, from its generation
    http_json.py                 a series from any service that answers JSON
    neso.py                      Great Britain's national carbon intensity, live
    neso_region.py               a region of Great Britain
    open_electricity.py          the average intensity of Australian grids, from energy and
                                 emissions
    open_electricity_answers.py  decodes and checks Open Electricity's answers
    providers.py                 what each provider serves and needs
    sources.py                   opens the provider that the settings name
    static.py                    one number, declared in the settings
    watttime.py                  WattTime, API v3: marginal emissions of a region, and their hourly
                                 average
    watttime_answers.py          decodes and checks WattTime's answers
"""
