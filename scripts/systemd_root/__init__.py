"""What `scripts/systemd-root` does: a real systemd in a root of its own, and our units there.

The map:
    boot.sh       become PID 1 of that root, with nothing of the machine in reach
    __main__.py   writes settings and the few units that are not ours into it
    checks.py     runs inside as a service: every finding, one after the other
    findings.py   a finding, and the table of them
    manager.py    asks systemd inside: systemctl, what a service's process may
    job.py        a dummy job: it registers and reports as the hook does, and counts its steps
    probe.py      runs in a service's place, and says what its hardening lets through

Invariant: a finding is what was seen there; nothing is repeated until it is right.
"""
