"""Launchers: what starts the ranks of a job, and can queue its next launch before one leaves.

The map:
    contract.py  what wattmesh asks of every launcher
"""
