"""`wattmesh doctor`: its checks and its screen.

The map:
    actuator_checks.py  checks this node's actuator
    checks.py           checks settings, disk, catalogues, daemon, signals and clock
    doctor.py           the command and its screen
    findings.py         the result of one check
    install_checks.py   checks groups, units, and what the daemon runs with
    journal_checks.py   checks the journal
    power_checks.py     checks every power source
    service_checks.py   checks what the services' users and units may read
    tls_checks.py       checks the certificate, and the way to controllers
"""
