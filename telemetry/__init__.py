"""Measurements: readings of power and carbon, each with its unit and its age.

The map:
    actuator/            the one part that may change a GPU; a separate process
    energy/              from readings to joules
    fake_nvml/           a fake NVML library, for tests, the demo and other projects
    sources/             sources of power readings
    carbon.py            carbon intensity: points, series, the protocol of providers
    concurrency_limit.py limits concurrent users, in all and per user
    deadline.py          runs calls that may hang, with a deadline
    desired.py           wished clocks and caps of a node's GPUs, with leases (pure)
    exogenous.py         what drives a grid: wind, sun, load, weather; the protocol of sources
    peer_credentials.py  the process at the other end of a Unix socket
    readings.py          power readings, the protocol of sources
    slots.py             where intervals of a fixed length begin (pure)
"""
