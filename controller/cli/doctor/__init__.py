"""`wattmesh doctor`: what it looks at, and what it says.

The map:
    actuator_checks.py  what `wattmesh doctor` says of this node's actuator
    checks.py           what `wattmesh doctor` looks at
    doctor.py           the command, and what it prints
    findings.py         one line of `wattmesh doctor` or `attach-check`, and the three things that
                        it can say
    power_checks.py     what `wattmesh doctor` sees of power
"""
