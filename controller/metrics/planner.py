"""Plans for Prometheus: how old, how close to the bound, what they take and how they fail.

Invariant: a run without a plan has no sample, so that an age that grows means a planner that does
not answer, and none means a run that is not planned.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.planner.asking import Planning


def plan_metrics(loop_facts: LoopFacts) -> Iterator[Metric]:
    """How planning gets on."""
    planning = loop_facts.planning()
    yield from _plan_metrics(loop_facts, planning)
    questions = CounterMetricFamily(
        "wattmesh_planner_questions",
        "Plans asked of the planning process since the start, by outcome.",
        labels=["outcome"],
    )
    questions.add_metric(["answered"], planning.answered)
    questions.add_metric(["failed"], planning.failed)
    waiting = GaugeMetricFamily("wattmesh_planner_waiting_runs", "Runs whose next plan is due.")
    waiting.add_metric([], planning.waiting)
    yield from (questions, waiting)


def _plan_metrics(loop_facts: LoopFacts, planning: Planning) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "wattmesh_plan_age_seconds",
        "Seconds since the observation that the newest plan was made from.",
        labels=["run", "run_id"],
    )
    gap = GaugeMetricFamily(
        "wattmesh_plan_gap_ratio",
        "Most that a better plan could save under the same forecast, as a share of the bound.",
        labels=["run", "run_id"],
    )
    solve = GaugeMetricFamily(
        "wattmesh_plan_solve_seconds",
        "Time that it took to compute the newest plan.",
        labels=["run", "run_id"],
    )
    finish = GaugeMetricFamily(
        "wattmesh_plan_finish_timestamp_seconds",
        "Unix time at which the run has trained its tokens by the newest plan.",
        labels=["run", "run_id"],
    )
    point = GaugeMetricFamily(
        "wattmesh_plan_point_info",
        "1; the point that the newest plan has the run at now; empty: suspended.",
        labels=["run", "run_id", "point"],
    )
    report, now = loop_facts.turned.report if loop_facts.turned else None, loop_facts.clock.now()
    for run in report.observation.runs if report and report.observation else ():
        state, labels = planning.runs.get(run.run), [run.name, run.run]
        if run.plan is not None:
            age.add_metric(labels, (now - run.plan.made_at).total_seconds())
            gap.add_metric(labels, run.plan.gap)
            finish.add_metric(labels, run.plan.finish_at.timestamp())
            step = run.plan.at(now)
            if step is not None:
                point.add_metric([*labels, step.point], 1)
        if state is not None and state.solve_s is not None:
            solve.add_metric(labels, state.solve_s)
    yield from (age, gap, finish, point, solve)
