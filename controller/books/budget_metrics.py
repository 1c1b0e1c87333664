"""Budgets for Prometheus: limit, spent, planned, burn per window, residual, and when it ends.

Invariant: what is not known has no sample; figures are those of the newest look at the budgets (at
most an hour old), so a scrape never waits for them.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from wattmesh.controller.books.spending import PeriodLine
from wattmesh.controller.pulse import Pulse


def budget_metrics(pulse: Pulse) -> Iterator[Metric]:
    """Where each budget stands."""
    yield from _amounts(pulse.budgets)
    yield _burn(pulse.budgets)
    ends = GaugeMetricFamily(
        "wattmesh_budget_exhausted_timestamp_seconds",
        "When the limit was, or on this course will be, used up; absent while it lasts.",
        labels=["budget"],
    )
    alerts = GaugeMetricFamily(
        "wattmesh_budget_alert",
        "1 while a budget alerts, by urgency: slow, fast, exhausted.",
        labels=["budget", "urgency"],
    )
    for line in pulse.budgets:
        if line.exhausted_at is not None:
            ends.add_metric([line.name], line.exhausted_at.timestamp())
        for urgency in ("slow", "fast", "exhausted"):
            alerts.add_metric([line.name, urgency], float(line.urgency == urgency))
    yield from (ends, alerts)


def _amounts(lines: tuple[PeriodLine, ...]) -> Iterator[Metric]:
    """Give the grams of each budget."""
    limit = GaugeMetricFamily(
        "wattmesh_budget_limit_grams",
        "Grams that may be spent in the running period.",
        labels=["budget"],
    )
    spent = GaugeMetricFamily(
        "wattmesh_budget_spent_grams",
        "Grams spent in it, of slots that have a price.",
        labels=["budget"],
    )
    planned = GaugeMetricFamily(
        "wattmesh_budget_planned_grams",
        "Grams that its plan has by now.",
        labels=["budget"],
    )
    residual = GaugeMetricFamily(
        "wattmesh_budget_residual_grams",
        "The limit less what was spent; below 0 once it is exhausted.",
        labels=["budget"],
    )
    course = GaugeMetricFamily(
        "wattmesh_budget_on_course_grams",
        "Grams at its end, if it burns on as in the newest days.",
        labels=["budget"],
    )
    for line in lines:
        for family, grams in (
            (limit, line.limit_g),
            (spent, line.spent_g),
            (planned, line.expected_g),
            (residual, line.residual_g),
            (course, line.on_course_g),
        ):
            if grams is not None:
                family.add_metric([line.name], grams)
    yield from (limit, spent, planned, residual, course)


def _burn(lines: tuple[PeriodLine, ...]) -> Metric:
    """Give the burn of each window."""
    burn = GaugeMetricFamily(
        "wattmesh_budget_burn_ratio",
        "Grams spent over grams planned in the newest window; 1 follows the plan.",
        labels=["budget", "window"],
    )
    for line in lines:
        for each in line.burns:
            if each.ratio is not None:
                burn.add_metric([line.name, f"{each.hours:.0f}h"], each.ratio)
    return burn
