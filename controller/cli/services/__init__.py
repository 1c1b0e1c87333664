"""Commands that run, install or set up the parts of a site.

The map:
    actuator.py     `wattmesh actuator`: its help
    agent.py        `wattmesh agent`: its help
    daemon.py       `wattmesh daemon`: its help
    db.py           db upgrade, current
    demo.py         demo: finds and starts the example of that name
    install.py      `wattmesh units`, `rules`, `completion`
    nodes.py        `wattmesh nodes`: tokens of the nodes' agents, and nodes that are gone for good
    powercap.py     `wattmesh powercap`: cap what all GPUs together may draw, see how it is kept,
                    end it
    restore_all.py  `wattmesh restore-all`
    settings.py     settings check, sample
"""
