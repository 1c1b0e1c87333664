"""A local server that answers like the carbon providers, faults included.

For whoever must test carbon code without keys, without a network and without waiting for an outage.

    answers.py            a request and a reply before they become HTTP
    faults.py             every way to misbehave, and the rules that switch it on
    grids.py              the invented grids: the truth, and what is known of it at a moment
    electricity_maps.py, watttime.py, neso.py, eia930.py, http_json.py, open_electricity.py
                          the answers of each provider
    entsoe.py, entsoe_mix.py, entsoe_prices.py
                          the same of ENTSO-E: day-ahead forecasts, generation, prices
    exogenous/            the same of other exogenous series
    spoiled.py            answers in place of the right one, and bytes that come wrong
    control.py            switching faults over HTTP
    server.py             the server
    __main__.py           the same from a shell

Invariant: values are invented, or come from a trace of the user; never from a provider.
"""

from wattmesh.integrations.carbon.grid_server.answers import ReceivedRequest, ServedProvider
from wattmesh.integrations.carbon.grid_server.faults import ActiveFault, Fault
from wattmesh.integrations.carbon.grid_server.grids import Measure, Ripening, Shape, SimulatedGrid
from wattmesh.integrations.carbon.grid_server.server import GridServer

__all__ = [
    "ActiveFault",
    "Fault",
    "GridServer",
    "Measure",
    "ReceivedRequest",
    "Ripening",
    "ServedProvider",
    "Shape",
    "SimulatedGrid",
]
