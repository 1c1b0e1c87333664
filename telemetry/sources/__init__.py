"""The sources of power readings: NVML, AMD SMI, Prometheus, RAPL, a node's own meter, a constant.

The map:
    amd.py                 this machine's AMD GPUs, through AMD SMI
    chain.py               several sources as one: per device the best that answers
    gpu_threads.py         GPUs of one vendor's library, each with a thread and a deadline
    ipmi.py                a node's power by `ipmitool dcmi power reading`
    node_meter.py          a node's own meter behind its slow controller
    nvml.py                typed calls and setters of NVML
    nvml_device.py         one GPU: which NVML fields and calls to use
    nvml_library.py        the process's one NVML library, and its errors
    nvml_source.py         this machine's NVIDIA GPUs
    prometheus.py          GPUs that an exporter measures, through a Prometheus server
    prometheus_answers.py  decodes query answers: names, units, ages, blanks (pure)
    rapl.py                processors and DRAM, through powercap
    redfish.py             a node's power by Redfish
    stale.py               detects sensors that have stopped (pure)
    static_power.py        unmeasured devices, at an assumed power
"""
