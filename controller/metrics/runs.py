"""Runs for Prometheus: how far, how fast, why they hold, what they were switched to.

Invariant: a run that has finished keeps its sums and its speed, tokens and switches, and has no
deadline, silence or freeze any more, so nothing can alert on it. A switch is named by words that
repeat (points, who asked, the reason's key): its sentence is in `wattmesh why RUN`.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wattmesh.controller.journal.runs.run_row import LIVES
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.metrics.figures import Figures, RunFigure
from wattmesh.reconfig.switch import FINAL


def run_metrics(loop_facts: LoopFacts, figures: Figures) -> Iterator[Metric]:
    """Give every metric of runs."""
    yield from _training(figures)
    yield from _promised(figures)
    yield from _health(figures)
    yield from _sleeping(figures)
    yield from _switches(figures)
    yield from _decided(loop_facts, figures)


def _training(figures: Figures) -> Iterator[Metric]:
    tokens = CounterMetricFamily("wattmesh_run_tokens", "Tokens trained.", labels=["run", "run_id"])
    speed = GaugeMetricFamily(
        "wattmesh_run_throughput_tokens_per_second",
        "Speed, as the run reports it.",
        labels=["run", "run_id"],
    )
    info = GaugeMetricFamily(
        "wattmesh_run_config_info",
        "1; the layout and the point that the run is at. state: live, asleep, queued, lost "
        "(not heard), finished, or how its last launch left: stopped, failed.",
        labels=["run", "run_id", "point", "layout", "state"],
    )
    for run in figures.runs:
        tokens.add_metric([run.name, run.run], run.tokens)
        if run.state == "live" and run.tokens_per_s:
            speed.add_metric([run.name, run.run], run.tokens_per_s)
        info.add_metric([run.name, run.run, run.point, run.layout, run.state], 1)
    yield from (tokens, speed, info)


def _promised(figures: Figures) -> Iterator[Metric]:
    """What a run that goes on has to reach."""
    target = GaugeMetricFamily(
        "wattmesh_run_target_tokens",
        "Tokens that a run that goes on is to train; absent where it named none.",
        labels=["run", "run_id"],
    )
    deadline = GaugeMetricFamily(
        "wattmesh_run_deadline_timestamp_seconds",
        "Unix time by which a run that goes on is to have trained them; absent without a deadline.",
        labels=["run", "run_id"],
    )
    for run in _going_on(figures):
        if run.tokens_total:
            target.add_metric([run.name, run.run], run.tokens_total)
        if run.deadline is not None:
            deadline.add_metric([run.name, run.run], run.deadline.timestamp())
    yield from (target, deadline)


def _health(figures: Figures) -> Iterator[Metric]:
    silent = GaugeMetricFamily(
        "wattmesh_run_heard_age_seconds",
        "Seconds since the newest sign of life of a run that goes on.",
        labels=["run", "run_id"],
    )
    frozen = GaugeMetricFamily(
        "wattmesh_run_frozen",
        "1 while a run that goes on is frozen, by wattmesh (after failed switches) or by a person.",
        labels=["run", "run_id", "by"],
    )
    saves = GaugeMetricFamily(
        "wattmesh_run_checkpoint_failing",
        "1 while a run that goes on says that its newest save step left no checkpoint.",
        labels=["run", "run_id"],
    )
    for run in _going_on(figures):
        labels = [run.name, run.run]
        silent.add_metric(labels, run.silent_s)
        saves.add_metric(labels, float(run.saves_nothing))
        for who in ("wattmesh", "person"):
            frozen.add_metric([*labels, who], float(run.frozen_by == who))
    yield from (silent, frozen, saves)


def _sleeping(figures: Figures) -> Iterator[Metric]:
    wakes = GaugeMetricFamily(
        "wattmesh_run_wakes_timestamp_seconds",
        "When a run that sleeps is started again at the latest, whoever lives then (Unix time).",
        labels=["run", "run_id"],
    )
    for run in figures.runs:
        if run.wakes_at is not None:
            wakes.add_metric([run.name, run.run], run.wakes_at.timestamp())
    queued = GaugeMetricFamily(
        "wattmesh_run_queued_seconds",
        "For how long a run has waited that left for another size; no value where none does.",
        labels=["run", "run_id"],
    )
    for run in figures.runs:
        if run.state == "queued":
            queued.add_metric([run.name, run.run], run.silent_s)
    yield from (wakes, queued)


def _switches(figures: Figures) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "wattmesh_switches", "Switches that ended, by outcome.", labels=["run", "run_id", "outcome"]
    )
    newest = GaugeMetricFamily(
        "wattmesh_run_switch_timestamp_seconds",
        "Unix time at which the newest switch of a run that goes on was ordered; state: where it "
        "is, or how it ended; reason: the key of the decision, or `ordered` by a person.",
        labels=["run", "run_id", "from_point", "to_point", "by", "reason", "state"],
    )
    names = {run.run: run.name for run in figures.runs}
    # A counter that begins with its first event hides that event from increase() and rate().
    counts = {
        (run.run, outcome.value): 0 for run in _going_on(figures) for outcome in sorted(FINAL)
    } | dict(figures.switches)
    for (run_id, outcome), count in counts.items():
        ended.add_metric([names.get(run_id, run_id), run_id, outcome], count)
    for run in _going_on(figures):
        each = run.switch
        if each is not None:
            words = [each.from_point, each.to_point, each.by, each.reason, each.state]
            newest.add_metric([run.name, run.run, *words], each.ordered_at.timestamp())
    yield from (ended, newest)


def _decided(loop_facts: LoopFacts, figures: Figures) -> Iterator[Metric]:
    slack = GaugeMetricFamily(
        "wattmesh_run_slack_seconds",
        "Seconds that the deadline guard has to spare.",
        labels=["run", "run_id"],
    )
    decision = GaugeMetricFamily(
        "wattmesh_run_decision",
        "1; action and reason of the newest decision.",
        labels=["run", "run_id", "action", "reason"],
    )
    names = {run.run: run.name for run in figures.runs}
    for each in loop_facts.turned.report.decisions if loop_facts.turned else ():
        labels = [names.get(each.run, each.run), each.run]
        decision.add_metric([*labels, each.action.value, each.kind], 1)
        if each.slack_s is not None:
            slack.add_metric(labels, each.slack_s)
    yield from (decision, slack)


def _going_on(figures: Figures) -> Iterator[RunFigure]:
    """Give the runs that are live or away, or lost without having said that they leave."""
    return (run for run in figures.runs if run.state in (*LIVES, "lost"))
