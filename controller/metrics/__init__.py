"""Metrics for Prometheus: absolute values from the journal.

The map:
    budgets.py  metrics of budgets
    caps.py     metrics of the power cap
    figures.py  reads from the journal what the metrics need
    ledger.py   metrics of joules, grams, unobserved time and savings
    metrics.py  metrics of the daemon itself; serves them all
    nodes.py    metrics of nodes: who is heard, which GPUs are read
    planner.py  metrics of plans
    points.py   metrics of points beside their catalogues
    runs.py     metrics of runs: progress, deadline, freeze, switches, decisions
    scrapes.py  the server of /metrics, with a limit on silent connections
    signals.py  metrics of the grid signals
    storage.py  metrics of the journal's disk
"""
