"""What is true now, with its unit and its age.

The map:
    actuator/            the one part that may change a GPU, a process of its own
    energy/              from readings to joules
    fake_nvml/           a fake NVML library, for tests, the demo and others
    sources/             where power readings come from
    carbon.py            carbon points, and who can give them
    deadline.py          calls that may hang, with a deadline
    desired.py           clocks and caps that are wished for a node's GPUs, with leases (pure)
    peer_credentials.py  who is at the other end of a Unix socket
    places.py            so many at once, and so many of one user
    readings.py          power readings, and who can give them
    slots.py             where intervals of a fixed length begin (pure)
"""
