"""Commands about the grid signal.

The map:
    carbon.py            `wattmesh carbon`: now, history, forecast, providers
    carbon_providers.py  asks each configured carbon provider what it serves with the configured key
    carbon_screen.py     what the answers about carbon signals look like
"""
