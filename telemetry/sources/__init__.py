"""Where power readings come from: NVML, Prometheus, RAPL, a stated number.

The map:
    chain.py               the best of several sources, per device
    nvml.py                the one door to NVML: typed calls and setters
    nvml_device.py         one GPU: which of its answers to use
    nvml_library.py        the one library of this process, and its errors
    nvml_source.py         the GPUs of this machine, each with a thread and a deadline
    prometheus.py          what an exporter reads already, through a Prometheus server
    prometheus_answers.py  names, units, ages and blanks of exporters (pure)
    rapl.py                processors and their memory, through powercap
    stale.py               sensors that have stopped (pure)
    static_power.py        devices that nothing measures, at an assumed power
"""
