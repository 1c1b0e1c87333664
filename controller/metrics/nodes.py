"""Nodes and their GPUs for Prometheus, as the daemon hears of them.

Invariant: what costs a series for each node is there only for nodes that need a look, so a site of
a thousand nodes that are well adds none.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from wattmesh.controller.cycle.fences import refusing
from wattmesh.controller.cycle.fleet import recently_heard
from wattmesh.controller.loop_facts import LoopFacts


def node_metrics(loop_facts: LoopFacts) -> Iterator[Metric]:
    """Who is heard, which GPUs are read, and whose actuator refuses this daemon."""
    yield _coverage(loop_facts)
    yield from _heard(loop_facts)
    fenced = GaugeMetricFamily(
        "wattmesh_actuators_fenced",
        "Nodes whose actuator refuses this daemon and obeys another journal or epoch.",
        labels=["reason"],
    )
    for why, each in refusing(loop_facts.fleet.nodes, loop_facts.clock.now()).items():
        fenced.add_metric([why], float(len(each)))
    yield fenced


def _coverage(loop_facts: LoopFacts) -> Metric:
    covered = GaugeMetricFamily(
        "wattmesh_coverage_gpus",
        "GPUs whose power was read lately (seen), or ever (expected).",
        labels=["state"],
    )
    for state, count in zip(("seen", "expected"), loop_facts.gpu_coverage, strict=True):
        covered.add_metric([state], float(count))
    return covered


def _heard(loop_facts: LoopFacts) -> Iterator[Metric]:
    nodes = GaugeMetricFamily(
        "wattmesh_nodes",
        "Nodes whose agent was heard lately (heard), and those that are silent (silent).",
        labels=["state"],
    )
    silent = GaugeMetricFamily(
        "wattmesh_node_silent_seconds",
        "Seconds since a silent node's agent was last heard; nodes that are heard have none.",
        labels=["node"],
    )
    now, count = loop_facts.clock.now(), {"heard": 0, "silent": 0}
    for node in loop_facts.fleet.nodes:
        heard = recently_heard(node, now)
        count["heard" if heard else "silent"] += 1
        if not heard:
            silent.add_metric([node.node], (now - node.last_seen_at).total_seconds())
    for state, found in count.items():
        nodes.add_metric([state], float(found))
    yield from (nodes, silent)
