"""What is true now, with its unit and its age.

The map:
    readings.py          power readings, and who can give them
    carbon.py            carbon points, and who can give them
    slots.py             where intervals of a fixed length begin (pure)
    ledger.py            what the energy ledger's rows are and how amounts are split (pure)
    unobserved.py        time of a held GPU that nobody booked (pure)
    meter.py             from two looks at a GPU to joules: the rules (pure)
    desired.py           clocks and caps that are wished for a node's GPUs, with leases (pure)
    attribution.py       which run a GPU works for (pure)
    peer_credentials.py  who is at the other end of a Unix socket
    places.py            so many at once, and so many of one user
    node_view.py         who computes on a node's GPUs, as its process table shows
    node_claims.py       both together, look after look
    delivery.py          what an agent hands to the controller (pure)
    pending.py           amounts that wait to be booked
    sampler.py           reads a source, applies the rules, books rows
    deadline.py          calls that may hang, with a deadline
    burst.py             ten looks a second for a while, with an error bound
    sources.py           the best of several sources, per device
    nvml.py              the one door to NVML: typed calls and setters
    nvml_library.py      the one library of this process, and its errors
    nvml_source.py       the GPUs of this machine, each with a thread and a deadline
    nvml_device.py       one GPU: which of its answers to use
    stale.py             sensors that have stopped (pure)
    rapl.py              processors and their memory, through powercap
    prometheus.py        what an exporter reads already, through a Prometheus server
    prometheus_answers.py  names, units, ages and blanks of exporters (pure)
    static_power.py      devices that nothing measures, at an assumed power
    crosscheck.py        the counter held against the integral of power (pure)
    residual.py          what a node's meter shows beyond its parts (pure)
    exporter.py          devices as metrics for Prometheus
    actuator/            the one part that may change a GPU, a process of its own
    fake_nvml/           a fake NVML library, for tests, the demo and others
"""
