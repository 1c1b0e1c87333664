"""`wattmesh doctor`: its checks and its screen.

The map:
    actuator_checks.py  checks this node's actuator
    checks.py           checks settings, journal, disk, catalogues, daemon, signals and clock
    doctor.py           the command and its screen
    findings.py         the result of one check
    power_checks.py     checks every power source
"""
