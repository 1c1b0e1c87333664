"""The ledger for Prometheus: joules, grams, darkness and savings, by run and line.

Counters where sums only grow, gauges where they may be corrected. Invariant: no series holds two
signals, or two runs of one name. What an amount is beside measured stands in its labels where it is
a gauge of its own; of counters, and of gauges that are held against them, in `wattmesh_*_flag`, for
a label that changes would end a counter and begin another one.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wattmesh.controller.metrics.figures import Figures
from wattmesh.telemetry.readings import FLAGS

UG_PER_G = 1e6
MJ_PER_J = 1e3
MS_PER_S = 1e3


def ledger_metrics(figures: Figures, boundary: str) -> Iterator[Metric]:
    """Give every metric of the ledger; `boundary`: `it` or `facility`."""
    yield from _energy(figures)
    yield from _carbon(figures)
    yield from _saved(figures, boundary)
    yield from _cluster(figures, boundary)


def _energy(figures: Figures) -> Iterator[Metric]:
    joules = CounterMetricFamily(
        "wattmesh_energy_joules",
        "Energy booked, by run and by line of the ledger; the lines add up to the cluster.",
        labels=["run", "run_id", "line"],
    )
    unobserved = GaugeMetricFamily(
        "wattmesh_unobserved_seconds",
        "Device-seconds that nobody measured; falls when a counter covers them later.",
        labels=["run", "run_id", "line"],
    )
    upper = GaugeMetricFamily(
        "wattmesh_unobserved_upper_joules",
        "Most energy that can have been drawn in unobserved time (power limit x time): an "
        "estimate.",
        labels=["run", "run_id", "line"],
    )
    flag = GaugeMetricFamily(
        "wattmesh_energy_flag",
        "1 where any of these joules is estimated, provisional or simulated.",
        labels=["run", "run_id", "line", "flag"],
    )
    for row in figures.energy:
        labels = [row.run, row.run_id, row.line]
        joules.add_metric(labels, row.energy_mj / MJ_PER_J)
        unobserved.add_metric(labels, row.unobserved_ms / MS_PER_S)
        upper.add_metric(labels, row.upper_mj / MJ_PER_J)
        for each in FLAGS:
            flag.add_metric([*labels, each.value], float(each.value in row.flags))
    yield from (joules, unobserved, upper, flag)


def _carbon(figures: Figures) -> Iterator[Metric]:
    """What was emitted, each signal for itself."""
    first = CounterMetricFamily(
        "wattmesh_carbon_first_reported_grams",
        "Grams emitted, as first reported, before any revision.",
        labels=["run", "run_id", "line", "signal"],
    )
    restated = GaugeMetricFamily(
        "wattmesh_carbon_restated_grams",
        "Grams emitted, by the newest values of the signal.",
        labels=["run", "run_id", "line", "signal"],
    )
    upper = GaugeMetricFamily(
        "wattmesh_unobserved_upper_grams",
        "Most grams that can have been emitted in unobserved time: an estimate.",
        labels=["run", "run_id", "line", "signal"],
    )
    flag = GaugeMetricFamily(
        "wattmesh_carbon_flag",
        "1 where any of these grams is estimated, provisional or simulated.",
        labels=["run", "run_id", "line", "signal", "flag"],
    )
    for row in figures.grams:
        labels = [row.run, row.run_id, row.line, row.signal]
        first.add_metric(labels, row.first_ug / UG_PER_G)
        restated.add_metric(labels, row.newest_ug / UG_PER_G)
        upper.add_metric(labels, row.upper_ug / UG_PER_G)
        for each in FLAGS:
            flag.add_metric([*labels, each.value], float(each.value in row.flags))
    yield from (first, restated, upper, flag)


def _saved(figures: Figures, boundary: str) -> Iterator[Metric]:
    """What each run saved, once that is settled; it stays when the run has finished."""
    low = GaugeMetricFamily(
        "wattmesh_carbon_saved_grams",
        "Settled saving against the point the run was submitted at, lower end; may fall, and "
        "may be negative.",
        labels=["run", "run_id", "baseline", "signal", "boundary", "flags"],
    )
    high = GaugeMetricFamily(
        "wattmesh_carbon_saved_high_grams",
        "Upper end of that saving; higher where some of the run's time was not read.",
        labels=["run", "run_id", "baseline", "signal", "boundary", "flags"],
    )
    parts = GaugeMetricFamily(
        "wattmesh_carbon_saved_part_grams",
        "Parts of the lower end: what a better single point saved (better_point), and what "
        "following the grid saved (carbon_aware); absent while not known.",
        labels=["run", "run_id", "baseline", "signal", "boundary", "flags", "part"],
    )
    for each in figures.saved:
        found = each.found
        flags = "+".join(found.flags)
        labels = [each.run, each.run_id, each.baseline, each.signal, boundary, flags]
        for family, saved_ug in ((low, found.saved_ug), (high, found.high_ug)):
            if saved_ug is not None:
                family.add_metric(labels, saved_ug / UG_PER_G)
        for part, part_ug in (
            ("better_point", found.better_point_ug),
            ("carbon_aware", found.carbon_aware_ug),
        ):
            if part_ug is not None:
                parts.add_metric([*labels, part], part_ug / UG_PER_G)
    yield from (low, high, parts)


def _cluster(figures: Figures, boundary: str) -> Iterator[Metric]:
    """What all runs saved together, less what given-back GPUs emitted."""
    saved = GaugeMetricFamily(
        "wattmesh_carbon_saved_cluster_grams",
        "Settled savings of all runs, less what given-back GPUs emitted before another job had "
        "them: lower end (low), upper end (high).",
        labels=["signal", "boundary", "flags", "end"],
    )
    released = GaugeMetricFamily(
        "wattmesh_carbon_saved_released_grams",
        "Grams taken off the cluster's saving for given-back GPUs.",
        labels=["signal", "boundary", "flags"],
    )
    for line in figures.cluster:
        values = [line.signal, boundary, "+".join(line.flags)]
        for end, grams in (("low", line.saved_g), ("high", line.high_g)):
            if grams is not None:
                saved.add_metric([*values, end], grams)
        released.add_metric(values, line.released_g)
    yield from (saved, released)
