"""The agent itself as Prometheus metrics, beside those of its devices.

Invariant: what the controller refuses is counted until it has taken it.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wattmesh.controller.agent.duties import Newest
from wattmesh.controller.agent.refusals import MJ_PER_J


class AgentMetrics(Collector):
    """Tells Prometheus of one agent."""

    def __init__(self, newest: Newest) -> None:
        """Take the facts that its loops leave."""
        self._newest = newest

    def collect(self) -> Iterator[Metric]:
        """Give every metric."""
        kept = self._newest.kept_back
        rows = GaugeMetricFamily(
            "wattmesh_agent_refused_rows",
            "Ledger rows that the controller refuses: kept back by the agent, and in no sum.",
        )
        joules = GaugeMetricFamily(
            "wattmesh_agent_refused_joules",
            "Energy in the rows that the controller refuses.",
        )
        rows.add_metric([], kept.rows)
        joules.add_metric([], kept.energy_mj / MJ_PER_J)
        yield from (rows, joules)
