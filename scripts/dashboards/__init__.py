"""Grafana's dashboards, made from Python by Grafana's own builders.

Why so: docs/decisions/0053-dashboards.md.

The map:
    __main__.py   writes integrations/grafana/dashboards, or checks that it is current
    panels.py     what a panel must have, and how it becomes one of Grafana's
    choices.py    what can be chosen at the top: cluster, signal, run, node
    selecting.py  pieces of PromQL that every panel uses in one way
    cluster.py    the dashboard of the whole cluster
    run.py        the dashboard of one run
    safety.py     the dashboard of decisions and safety
    health.py     its rows on what is seen, and on wattmesh itself

Nothing that runs at a site imports this: what is shipped is the JSON.
"""

from collections.abc import Mapping

from scripts.dashboards import cluster, run, safety
from scripts.dashboards.panels import DashboardSpec, encode

BOARDS: Mapping[str, DashboardSpec] = {
    "wattmesh-cluster.json": cluster.BOARD,
    "wattmesh-run.json": run.BOARD,
    "wattmesh-safety.json": safety.BOARD,
}


def made() -> dict[str, str]:
    """Make every file: its name and its content, the same on every machine."""
    return {name: encode(board) for name, board in BOARDS.items()}
