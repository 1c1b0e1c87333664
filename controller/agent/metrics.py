"""The agent itself as Prometheus metrics, beside those of its devices.

Invariant: a row that the controller refuses is counted until the controller has taken it.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wattmesh.controller.agent.duties import Newest
from wattmesh.controller.agent.refusals import MJ_PER_J


class AgentMetrics(Collector):
    """Collects the metrics of one agent."""

    def __init__(self, newest: Newest) -> None:
        """Keep the facts that the agent's loops write."""
        self._newest = newest

    def collect(self) -> Iterator[Metric]:
        """Give every metric."""
        kept = self._newest.kept_back
        rows = GaugeMetricFamily(
            "wattmesh_agent_refused_rows",
            "Ledger rows that the daemon refuses: the agent keeps them, and no sum has them.",
        )
        joules = GaugeMetricFamily(
            "wattmesh_agent_refused_joules",
            "Energy in the ledger rows that the daemon refuses.",
        )
        rows.add_metric([], kept.rows)
        joules.add_metric([], kept.energy_mj / MJ_PER_J)
        yield from (rows, joules)
