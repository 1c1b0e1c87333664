"""The agent itself as Prometheus metrics, beside those of its devices.

Invariant: a row that the controller refuses is counted until the controller has taken it; a lease
is served with what is left of it, and none where it has run out.
"""

from collections.abc import Iterator
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import wattmesh
from wattmesh.controller.agent.loop_bodies import Newest
from wattmesh.controller.agent.refusals import MJ_PER_J
from wattmesh.controller.process.loops import Clock
from wattmesh.telemetry.desired import FAULTS, Wish
from wattmesh.telemetry.energy.attribution import is_gpu


class AgentMetrics(Collector):
    """Collects the metrics of one agent."""

    def __init__(self, newest: Newest, *, node: str = "", clock: Clock | None = None) -> None:
        """Keep the facts that the agent's loops write; `node`: the name of this node."""
        self._newest = newest
        self._node = node
        self._clock = clock or Clock()

    def collect(self) -> Iterator[Metric]:
        """Give every metric."""
        info = GaugeMetricFamily(
            "wattmesh_agent_info",
            "1; the node of this agent, its version, and the mode of its actuator (none: no "
            "actuator answers; empty: not asked yet).",
            labels=["node", "version", "actuator"],
        )
        applied = self._newest.applied
        mode = applied.mode if applied else ""
        info.add_metric([self._node, wattmesh.__version__, mode], 1)
        yield info
        yield from self._outbox()
        yield from self._controller()
        yield from self._gpus()

    def _outbox(self) -> Iterator[Metric]:
        kept = self._newest.kept_back
        rows = GaugeMetricFamily(
            "wattmesh_agent_refused_rows",
            "Ledger rows that the daemon refuses: the agent keeps them, and no sum has them.",
        )
        joules = GaugeMetricFamily(
            "wattmesh_agent_refused_joules",
            "Energy in the ledger rows that the daemon refuses.",
        )
        fill = GaugeMetricFamily(
            "wattmesh_agent_outbox_bytes",
            "What the outbox holds (used), and from where on its rows are joined (limit).",
            labels=["kind"],
        )
        rows.add_metric([], kept.rows)
        joules.add_metric([], kept.energy_mj / MJ_PER_J)
        if self._newest.fill is not None:
            fill.add_metric(["used"], self._newest.fill.used_bytes)
            fill.add_metric(["limit"], self._newest.fill.limit_bytes)
        yield from (rows, joules, fill)

    def _controller(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "wattmesh_agent_controller_age_seconds",
            "Seconds since the daemon last answered with clocks and caps (instructions), and last "
            "took a delivery (delivery).",
            labels=["of"],
        )
        now_s = self._clock.monotonic()
        for what, at_s in (
            ("instructions", self._newest.heard_s),
            ("delivery", self._newest.taken_s),
        ):
            if at_s is not None:
                age.add_metric([what], max(0.0, now_s - at_s))
        yield age

    def _gpus(self) -> Iterator[Metric]:
        """Who holds each GPU here, and what the actuator says of it."""
        holder = GaugeMetricFamily(
            "wattmesh_gpu_holder_info",
            "1; the run that a GPU's energy is booked to, and the line: run, idle, unattributed, "
            "idle_after_release.",
            labels=["gpu_uuid", "run_id", "line"],
        )
        for gpu, claim in sorted(self._newest.claims.items()):
            if is_gpu(gpu):
                holder.add_metric([gpu, claim.run, claim.line], 1)
        lease = GaugeMetricFamily(
            "wattmesh_gpu_lease_seconds",
            "What is left of a lease on a GPU. kind: economy (a clock, given back unless it is "
            "renewed), obligation (an operator's cap, until its own end).",
            labels=["gpu_uuid", "kind", "holder"],
        )
        for labels, left_s in sorted(self._leases().items()):
            lease.add_metric(list(labels), left_s)
        fault = GaugeMetricFamily(
            "wattmesh_gpu_fault",
            "1 while someone else sets a GPU's clock or limit (foreign), or what wattmesh set "
            "there could not be taken back (restore).",
            labels=["gpu_uuid", "fault"],
        )
        refused = GaugeMetricFamily(
            "wattmesh_gpu_wish_refused",
            "1 while the actuator does not, or not wholly, do what is wished for a GPU.",
            labels=["gpu_uuid"],
        )
        for control in self._newest.applied.gpus if self._newest.applied else ():
            refused.add_metric([control.gpu_uuid], float(control.trouble != ""))
            for each in FAULTS:
                fault.add_metric([control.gpu_uuid, each], float(control.fault == each))
        yield from (holder, lease, fault, refused)

    def _leases(self) -> dict[tuple[str, str, str], float]:
        """Give the seconds that are left of each lease, by GPU, kind and holder."""
        told, heard_s = self._newest.instructions, self._newest.heard_s
        if told is None or heard_s is None:
            return {}
        age_s, now = self._clock.monotonic() - heard_s, self._clock.now()
        found = {
            (each.gpu_uuid, each.kind.value, each.holder): _left_s(each, age_s, now)
            for each in told.desired.wishes
        }
        return {key: left_s for key, left_s in found.items() if left_s > 0}


def _left_s(wish: Wish, age_s: float, now: datetime) -> float:
    """Give the seconds that are left of a wish that was heard `age_s` ago."""
    if wish.lease_s is not None:
        return wish.lease_s - age_s
    return (wish.until - now).total_seconds() if wish.until is not None else 0.0
