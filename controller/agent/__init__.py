"""`wattmesh agent`: measures one GPU node, and asks its actuator for clocks and caps.

The map:
    __main__.py     the process: start, signals, stop
    parts.py        makes every part from the settings
    loop_bodies.py  one turn of each loop: read, deliver, fetch
    obeying.py      passes the daemon's clocks and caps to the actuator, in every turn
    knowledge.py    the daemon's last answer, kept for when it does not answer
    outbox.py       ledger rows that are not delivered yet
    outbox_file.py  the outbox's SQLite file
    outbox_rows.py  the outbox's rows, and the part that was not sent
    refusals.py     rows that the daemon refuses: kept, and offered again
    coarsen.py      joins slots when the outbox is full (pure)
    link.py         the connection to the daemon: a Unix socket, or TLS with a token
    relay.py        passes calls of this node's jobs on to the daemon
    metrics.py      the agent's own metrics for Prometheus

It shares settings, loops and the service manager's protocol with the daemon, and neither its
journal nor its HTTP server: an agent has no database beside its outbox.
"""
