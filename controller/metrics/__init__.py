"""The figures for Prometheus: absolute values from the journal.

The map:
    budgets.py  budgets for Prometheus
    caps.py     the operator's power cap for Prometheus
    figures.py  what they need of the journal
    ledger.py   joules, grams, darkness and savings for Prometheus
    metrics.py  the figures for Prometheus
    planner.py  plans for Prometheus
    scrapes.py  the way in for scrapes of /metrics, with a bound on those who connect and say
                nothing
    signals.py  the grid signals for Prometheus
"""
