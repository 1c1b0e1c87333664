"""Points of runs for Prometheus: what was measured of them over what their catalogue says.

Invariant: what was not measured has no sample.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.metrics.figures import Figures


def point_metrics(loop_facts: LoopFacts, figures: Figures) -> Iterator[Metric]:
    """How far each point of each live run is from its catalogue."""
    speed = GaugeMetricFamily(
        "wattmesh_run_point_throughput_ratio",
        "Moving average of the measured speed of a point over its catalogue's.",
        labels=["run", "run_id", "point"],
    )
    power = GaugeMetricFamily(
        "wattmesh_run_point_power_ratio",
        "Moving average of the measured power of a point over its catalogue's.",
        labels=["run", "run_id", "point", "flags"],
    )
    alarm = GaugeMetricFamily(
        "wattmesh_run_point_alert",
        "1 while a point is further from its catalogue than policy.catalogue_alarm; quantity: "
        "speed, power.",
        labels=["run", "run_id", "point", "quantity"],
    )
    names = {run.run: run.name for run in figures.runs}
    for run_id, lines in loop_facts.points.items():
        for line in lines:
            labels = [names.get(run_id, run_id), run_id, line.point]
            speed.add_metric(labels, line.speed_ratio)
            alarm.add_metric([*labels, "speed"], float(line.speed_alarm))
            if line.power_ratio is not None:
                power.add_metric([*labels, "+".join(line.flags)], line.power_ratio)
                alarm.add_metric([*labels, "power"], float(line.power_alarm))
    yield from (speed, power, alarm)
