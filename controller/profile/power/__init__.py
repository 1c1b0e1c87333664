"""What measures a profiled job's power, and what sets its GPUs' clocks.

The map:
    agent_page.py  GPUs as the node's agent tells them on its page of metrics
    clocks.py      clocks of the GPUs, locked by the node's actuator
    meter.py       opens what the job file asks for, and gives joules of any window
"""
