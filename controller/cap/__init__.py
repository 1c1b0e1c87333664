"""An operator's cap on power, from the order to the boards.

The map:
    capping.py  the operator's power cap in one cycle
    held.py     an operator's power cap as it is kept: what boards hear of it, and what people do
    metrics.py  the operator's power cap for Prometheus
"""
