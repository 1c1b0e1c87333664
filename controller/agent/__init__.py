"""`wattmesh agent`: what reads, delivers, relays and obeys on one GPU node.

The map:
    coarsen.py      joining slots when there is no room for all of them (pure)
    outbox.py       what is measured and not yet delivered
    outbox_file.py  its SQLite file
"""
