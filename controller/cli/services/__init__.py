"""Commands that run, install or set up the parts of a site.

The map:
    actuator.py     `wattmesh actuator`: its help
    agent.py        `wattmesh agent`: its help
    daemon.py       `wattmesh daemon`: its help
    db.py           `wattmesh db`: current, upgrade, backup, restore, renew
    demo.py         `wattmesh demo`: finds and starts the example of that name
    install.py      `wattmesh units`, `rules`, `completion`
    nodes.py        `wattmesh nodes`: tokens of nodes, and nodes that are gone
    powercap.py     `wattmesh powercap`: order, show or end a power cap
    restore_all.py  `wattmesh restore-all`
    settings.py     `wattmesh settings`: check, sample
"""
