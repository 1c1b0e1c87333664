"""Power caps and demand response for Prometheus.

Invariant: no samples of a cap while none is in force, or none is announced; figures are those of
the newest turn of the cycle.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.status.cap_lines import announced_caps, cap_line, demand_lines


def cap_metrics(loop_facts: LoopFacts) -> Iterator[Metric]:
    """How a cap is kept."""
    watts = GaugeMetricFamily(
        "wattmesh_power_cap_watts",
        "Power cap: as ordered (ordered), the most that GPUs can draw under it (bound), the "
        "lowest possible (lowest); the last two only while the limit of a GPU is known.",
        labels=["figure", "flags"],
    )
    boards = GaugeMetricFamily(
        "wattmesh_power_cap_gpus",
        "GPUs held lower for the cap (held), and GPUs that obey no actuator (deaf).",
        labels=["state"],
    )
    kept = GaugeMetricFamily(
        "wattmesh_power_cap_kept", "1 while the cap in force is known to be kept."
    )
    line = cap_line(loop_facts, loop_facts.clock.now())
    if line is not None:
        flags = "+".join(line.flags)
        watts.add_metric(["ordered", ""], line.cap_w)
        if line.bound_w is not None:
            watts.add_metric(["bound", flags], line.bound_w)
        if line.lowest_w is not None:
            watts.add_metric(["lowest", flags], line.lowest_w)
        boards.add_metric(["held"], line.gpus)
        boards.add_metric(["deaf"], len(line.deaf))
        kept.add_metric([], float(line.meets))
    ahead = GaugeMetricFamily(
        "wattmesh_power_cap_announced_watts", "The next announced power cap, as ordered."
    )
    begins = GaugeMetricFamily(
        "wattmesh_power_cap_announced_start_timestamp_seconds",
        "When the next announced power cap begins.",
    )
    for each in announced_caps(loop_facts, loop_facts.clock.now())[:1]:
        ahead.add_metric([], each.cap_w)
        begins.add_metric([], each.start.timestamp())
    held = GaugeMetricFamily(
        "wattmesh_demand_response_held",
        "1 while demand response (by carbon, price) triggers nothing because its signal, the wall "
        "clock or the boards are in doubt; 0 while it follows its signal.",
        labels=["origin"],
    )
    for told in demand_lines(loop_facts):
        held.add_metric([told.origin], float(told.held))
    triggered = GaugeMetricFamily(
        "wattmesh_power_cap_triggered",
        "1 while the power cap in force was set by demand response, by what triggered it.",
        labels=["origin"],
    )
    if line is not None and line.trigger is not None:
        triggered.add_metric([line.origin], 1.0)
    yield from (watts, boards, kept, ahead, begins, held, triggered)
