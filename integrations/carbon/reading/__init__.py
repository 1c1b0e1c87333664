"""Requests to carbon services over HTTP, with a circuit breaker, and strict decoding.

The map:
    answers.py      classifies answers other than 200
    believed.py     refuses implausible values, with a reason
    breaker.py      a circuit breaker per provider
    credentials.py  secrets of a request, and how to hide them
    eia_api.py      asks EIA's API for the hourly grid monitor, for two kinds of sources
    entsoe_platform.py  asks ENTSO-E's transparency platform, for two kinds of sources
    entsoe_xml.py   its documents
    fuel_mix.py     derives the intensity of a generation mix
    http.py         JSON over HTTP with deadlines, retries and limits
    json_shape.py   where an unknown service keeps its values, as the settings declare it
    mixed_hours.py  hours of a generation mix to points of a series
    rows.py         converts a provider's rows to points
    told_hours.py   what providers of hours that are told late share
    trace.py        the file format of recorded traces
"""
