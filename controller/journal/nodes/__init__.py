"""What the journal keeps of nodes: their devices, their tokens, power caps.

The map:
    caps.py          power caps that operators ordered: append-only
    node_devices.py  which node a device belongs to
    node_facts.py    what a node's agent may tell beside its ledger rows
    node_store.py    GPU nodes, what their agents delivered, each batch once
    tokens.py        tokens of nodes' agents
"""
