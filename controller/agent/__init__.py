"""`wattmesh agent`: what reads, delivers, relays and obeys on one GPU node.

The map:
    __main__.py     the process: start, signals, stop
    parts.py        every part made from the settings
    duties.py       what each loop does in one turn: read, deliver, hear
    obeying.py      hands what the controller wishes to the actuator, again and again
    knowledge.py    what the controller has told, kept for when it is away
    outbox.py       what is measured and not yet delivered
    outbox_file.py  its SQLite file
    outbox_rows.py  its rows, and what of them was not sent yet
    refusals.py     changes that the controller refuses: kept back, and offered again
    coarsen.py      joining slots when there is no room for all of them (pure)
    link.py         the way to the controller: a Unix socket, or TLS with a token
    relay.py        the way of this node's jobs to the controller
    metrics.py      the agent itself as Prometheus metrics

It shares settings, loops and the service manager's protocol with the daemon, and neither its
journal nor its HTTP server: an agent has no database beside its outbox.
"""
