"""Budgets for Prometheus: limit, spent, planned, burn per window, residual, and when it ends.

Invariant: what is not known has no sample; grams name their signal, and what they are beside
measured; a limit and its plan are what people set, and have no flags. Figures are those of the
newest look at the budgets (at most an hour old), so a scrape never waits for them.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from wattmesh.controller.accounting.budgets.spending import PeriodLine
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.telemetry.readings import Quality, flags_of


def budget_metrics(loop_facts: LoopFacts) -> Iterator[Metric]:
    """Where each budget stands."""
    yield from _limit_metrics(loop_facts.budgets.lines)
    yield from _spent(loop_facts.budgets.lines)
    yield from _unobserved_metrics(loop_facts.budgets.lines)
    yield _burn(loop_facts.budgets.lines)
    ends = GaugeMetricFamily(
        "wattmesh_budget_exhausted_timestamp_seconds",
        "Unix time when the budget was, or at this rate will be, used up; absent if it lasts.",
        labels=["budget"],
    )
    alerts = GaugeMetricFamily(
        "wattmesh_budget_alert",
        "1 while a budget alerts with this urgency: slow, fast, exhausted.",
        labels=["budget", "urgency"],
    )
    for line in loop_facts.budgets.lines:
        if line.exhausted_at is not None:
            ends.add_metric([line.name], line.exhausted_at.timestamp())
        for urgency in ("slow", "fast", "exhausted"):
            alerts.add_metric([line.name, urgency], float(line.urgency == urgency))
    yield from (ends, alerts)


def _limit_metrics(lines: tuple[PeriodLine, ...]) -> Iterator[Metric]:
    limit = GaugeMetricFamily(
        "wattmesh_budget_limit_grams",
        "Grams that may be spent in the present period.",
        labels=["budget", "signal"],
    )
    planned = GaugeMetricFamily(
        "wattmesh_budget_planned_grams",
        "Grams that the plan allows until now.",
        labels=["budget", "signal"],
    )
    for line in lines:
        limit.add_metric([line.name, line.signal], line.limit_g)
        planned.add_metric([line.name, line.signal], line.expected_g)
    yield from (limit, planned)


def _spent(lines: tuple[PeriodLine, ...]) -> Iterator[Metric]:
    """Give the grams of each budget; those of another signal are a series of their own."""
    spent = GaugeMetricFamily(
        "wattmesh_budget_spent_grams",
        "Grams of the period's slots that have a price. The limit holds for its own signal only.",
        labels=["budget", "signal", "flags"],
    )
    residual = GaugeMetricFamily(
        "wattmesh_budget_residual_grams",
        "The limit less what was spent at most; below 0 once it is exhausted.",
        labels=["budget", "signal", "flags"],
    )
    course = GaugeMetricFamily(
        "wattmesh_budget_on_course_grams",
        "Grams at the end of the period, at the rate of the last days.",
        labels=["budget", "signal", "flags"],
    )
    for line in lines:
        labels = [line.name, line.signal, "+".join(line.flags)]
        spent.add_metric(labels, line.spent_g)
        residual.add_metric(labels, line.residual_g)
        if line.on_course_g is not None:
            course.add_metric([line.name, line.signal, _estimated(line.flags)], line.on_course_g)
        for other in line.others:
            flags = "+".join(other.flags)
            spent.add_metric([line.name, other.signal, flags], other.carbon_g)
    yield from (spent, residual, course)


def _unobserved_metrics(lines: tuple[PeriodLine, ...]) -> Iterator[Metric]:
    seconds = GaugeMetricFamily(
        "wattmesh_budget_unobserved_seconds",
        "Device-seconds of the period that nobody measured.",
        labels=["budget"],
    )
    upper = GaugeMetricFamily(
        "wattmesh_budget_unobserved_upper_grams",
        "Most grams of the unobserved time, beyond those spent; alerts count both together.",
        labels=["budget", "signal", "flags"],
    )
    for line in lines:
        seconds.add_metric([line.name], line.unobserved_s)
        upper.add_metric([line.name, line.signal, _estimated(line.flags)], line.upper_g)
        for other in line.others:
            labels = [line.name, other.signal, _estimated(other.flags)]
            upper.add_metric(labels, other.upper_g)
    yield from (seconds, upper)


def _estimated(flags: tuple[str, ...]) -> str:
    """Write the flags of what is an estimate, whatever it is made from."""
    return "+".join(flags_of(str(Quality.ESTIMATED), *flags))


def _burn(lines: tuple[PeriodLine, ...]) -> Metric:
    burn = GaugeMetricFamily(
        "wattmesh_budget_burn_ratio",
        "Grams spent over grams planned in the window, unobserved time at its most; 1 follows "
        "the plan.",
        labels=["budget", "window"],
    )
    for line in lines:
        for each in line.burns:
            if each.ratio is not None:
                burn.add_metric([line.name, f"{each.hours:.0f}h"], each.ratio)
    return burn
