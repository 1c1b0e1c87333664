"""Nodes in the journal: their devices, their tokens, power caps.

The map:
    caps.py          power caps that operators ordered, append-only
    node_devices.py  which node a device belongs to
    node_facts.py    the types of what a node's agent reports
    node_store.py    nodes and their agents' deliveries, each batch once
    tokens.py        tokens of nodes' agents
"""
