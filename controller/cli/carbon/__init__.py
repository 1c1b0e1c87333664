"""Commands about the grid signal.

The map:
    carbon.py            `wattmesh carbon`: now, history, forecast, providers
    carbon_providers.py  asks each configured provider what it serves
    carbon_screen.py     the screens of `wattmesh carbon`
"""
