"""The grid signals for Prometheus: value, age, what decisions rest on, and how good it is.

Invariant: a value whose interval is over is left out; ages grow between two readings of the journal
and through its outages.
"""

from collections.abc import Iterator
from datetime import timedelta

from prometheus_client.core import GaugeMetricFamily, Metric

from wattmesh.controller.journal.carbon.points import FetchState
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.metrics.figures import Figures
from wattmesh.policies.decision import Rung

BREAKER = ("closed", "half-open", "open")

LEADS_H = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 36, 48)
"""Hours ahead that are served: each is a series for each signal and bound."""


def carbon_metrics(loop_facts: LoopFacts, figures: Figures) -> Iterator[Metric]:
    """Give every metric of the grid signals."""
    yield from _intensity_metrics(loop_facts, figures)
    yield from _basis_metrics(loop_facts, figures)
    yield _ahead(loop_facts, figures)
    yield from _skill(figures)
    yield from _exogenous(loop_facts, figures)


def _intensity_metrics(loop_facts: LoopFacts, figures: Figures) -> Iterator[Metric]:
    grams = GaugeMetricFamily(
        "wattmesh_grid_carbon_intensity_grams_per_kilowatt_hour",
        "Present intensity, by signal.",
        labels=["signal", "zone", "quality", "flags"],
    )
    age = GaugeMetricFamily(
        "wattmesh_grid_signal_age_seconds",
        "Seconds since the provider last answered.",
        labels=["signal"],
    )
    usable = GaugeMetricFamily(
        "wattmesh_grid_signal_usable",
        "1 while decisions may rest on the signal.",
        labels=["signal"],
    )
    now = loop_facts.clock.now()
    for line in figures.signals:
        if line.g_per_kwh is not None and line.ends_at is not None and now < line.ends_at:
            labels = [line.signal, line.zone, line.quality, "+".join(line.flags)]
            grams.add_metric(labels, line.g_per_kwh)
        if line.heard_at is not None:
            age.add_metric([line.signal], (now - line.heard_at).total_seconds())
        if line.ahead:
            usable.add_metric([line.signal], float(line.usable(now)))
    yield from (grams, age, usable)


def _basis_metrics(loop_facts: LoopFacts, figures: Figures) -> Iterator[Metric]:
    rung = GaugeMetricFamily(
        "wattmesh_grid_signal_rung",
        "1 for what decisions rest on: issued (the provider's forecast), profile, static, none.",
        labels=["signal", "rung"],
    )
    issued = GaugeMetricFamily(
        "wattmesh_grid_forecast_age_seconds",
        "Seconds since the forecast was issued; for a profile, since the end of its history.",
        labels=["signal"],
    )
    poll = GaugeMetricFamily(
        "wattmesh_grid_poll_state",
        "1 for how the newest poll ended: ok, failed, refused (a person must act).",
        labels=["signal", "state"],
    )
    breaker = GaugeMetricFamily(
        "wattmesh_grid_breaker_state",
        "1 for the state of the provider's circuit breaker; while it is open, the provider is "
        "not asked.",
        labels=["signal", "state"],
    )
    now = loop_facts.clock.now()
    for line in figures.signals:
        for each in Rung if line.ahead else ():
            rung.add_metric([line.signal, each.value], float(each is line.rung))
        if line.ahead and line.issued_at is not None:
            issued.add_metric([line.signal], (now - line.issued_at).total_seconds())
        for state in FetchState:
            poll.add_metric([line.signal, state.value], float(state.value == line.state))
    for signal, read in loop_facts.breakers.items():
        now_in = read()
        for name in BREAKER if now_in else ():
            breaker.add_metric([signal, name], float(name == now_in))
    yield from (rung, issued, poll, breaker)


def _ahead(loop_facts: LoopFacts, figures: Figures) -> Metric:
    """What decisions expect of single hours ahead; Prometheus takes no samples of the future."""
    grams = GaugeMetricFamily(
        "wattmesh_grid_forecast_grams_per_kilowatt_hour",
        "Intensity that decisions expect so many hours ahead: the forecast (expected), and its "
        "10 % and 90 % quantiles (low, high) where they are known.",
        labels=["signal", "lead_hours", "bound"],
    )
    now = loop_facts.clock.now()
    for line in figures.signals:
        for lead_h in LEADS_H:
            at = now + timedelta(seconds=lead_h * line.hour_s)
            slot = next((each for each in line.hours if each.start <= at < each.end), None)
            if slot is None:
                continue
            for bound, value in (
                ("expected", slot.g_per_kwh),
                ("low", slot.low_g_per_kwh),
                ("high", slot.high_g_per_kwh),
            ):
                if value is not None:
                    grams.add_metric([line.signal, str(lead_h), bound], value)
    return grams


def _skill(figures: Figures) -> Iterator[Metric]:
    """How far each source of a forecast was off, beside 24 h persistence on the same hours."""
    error = GaugeMetricFamily(
        "wattmesh_grid_forecast_error_grams_per_kilowatt_hour",
        "Mean absolute error in recent weeks, by source and lead time (hours ahead, upper edge).",
        labels=["signal", "source", "lead_hours"],
    )
    persistence = GaugeMetricFamily(
        "wattmesh_grid_persistence_error_grams_per_kilowatt_hour",
        "Mean absolute error of 24 h persistence over the same hours; a source with a larger "
        "one has no skill.",
        labels=["signal", "source", "lead_hours"],
    )
    for line in figures.signals:
        for each in line.skill:
            labels = [line.signal, each.source, f"{each.lead_h:g}"]
            error.add_metric(labels, each.mae_g_per_kwh)
            persistence.add_metric(labels, each.persistence_mae_g_per_kwh)
    yield from (error, persistence)


def _exogenous(loop_facts: LoopFacts, figures: Figures) -> Iterator[Metric]:
    """What is forecast beside the decision signal: how fresh, and how far it reaches."""
    age = GaugeMetricFamily(
        "wattmesh_exogenous_age_seconds",
        "Seconds since the provider of wind, sun, load or weather last answered.",
        labels=["series"],
    )
    issued = GaugeMetricFamily(
        "wattmesh_exogenous_issue_age_seconds",
        "Seconds since the last hour that it tells of became known.",
        labels=["series"],
    )
    reach = GaugeMetricFamily(
        "wattmesh_exogenous_reach_seconds",
        "Seconds from now to the end of the last hour that it tells of; 0 when that has passed.",
        labels=["series"],
    )
    poll = GaugeMetricFamily(
        "wattmesh_exogenous_poll_state",
        "1 for how the newest poll ended: ok, failed, refused (a person must act).",
        labels=["series", "state"],
    )
    now = loop_facts.clock.now()
    for line in figures.exogenous:
        if line.heard_at is not None:
            age.add_metric([line.series], (now - line.heard_at).total_seconds())
        if line.issued_at is not None:
            issued.add_metric([line.series], (now - line.issued_at).total_seconds())
        if line.reaches_at is not None:
            reach.add_metric([line.series], max(0.0, (line.reaches_at - now).total_seconds()))
        for state in FetchState:
            poll.add_metric([line.series, state.value], float(state.value == line.state))
    yield from (age, issued, reach, poll)
