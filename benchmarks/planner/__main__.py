"""Planning a run: seconds, certified gap, and HiGHS on the same problems beside it.

    python -m benchmarks.planner [--json] [--repeats 5] [--limit 60]

A 70B model on 256 GPUs or fewer, 6 operating points and a pause, 300 s and 8 kWh per layout switch
(assumed speeds and watts, a made-up grid with a daily and a weekly swing). GPUs not used are
released (cost nothing) or held (220 W each). Times are the median of `--repeats`, the planner and
its peer taking turns. Nothing was tuned on these cases but the number of prices per sweep.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.planner.peers import Solved, flow_program
from benchmarks.report import Goal, Report, run
from tests.policies.planning.planner_cases import HOUR, case, wave
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.problem import Plan, PlanningProblem
from wattmesh.policies.planner.solver import solve

SLACKS = (1.1, 1.25, 1.5, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A plan and what it took, median: seconds by the wall, and of the processor."""

    plan: Plan
    seconds: float
    cpu_seconds: float


def timed(problem: PlanningProblem, repeats: int, beside: Callable[[], object] = int) -> Timed:
    """Plan several times, with something else in between."""
    found = solve(problem)
    if not isinstance(found, Plan):
        raise SystemExit(f"no plan: {found.reason}")
    taken = []
    for _ in range(repeats):
        beside()
        wall, cpu = time.perf_counter(), time.process_time()
        solve(problem)
        taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    seconds, cpu_seconds = (statistics.median(each) for each in zip(*taken, strict=True))
    return Timed(plan=found, seconds=seconds, cpu_seconds=cpu_seconds)


def row(name: str, problem: PlanningProblem, found: Timed) -> dict[str, Any]:
    """Put one case into words and numbers."""
    judged = found.plan.evaluation
    static = [
        each.grams
        for option in range(len(problem.options))
        if (each := evaluate(problem, (option,) * len(problem.seconds))).legal
    ]
    return {
        "case": name,
        "slots": len(problem.seconds),
        "seconds": found.seconds,
        "cpu_seconds": found.cpu_seconds,
        "gap_percent": 100 * found.plan.gap,
        "tonnes": judged.grams / 1e6,
        "best_single_point_tonnes": min(static) / 1e6,
        "layout_switches": judged.layout_switches,
        "clock_changes": judged.clock_changes,
    }


def mixed_case(slack: float) -> PlanningProblem:
    """A month: five minutes for 48 h, then hours."""
    seconds = (300.0,) * 576 + (HOUR,) * 672
    fine, coarse = wave(576, 300.0), wave(720)[48:]
    problem = case(720, slack)
    return PlanningProblem(
        tokens=problem.tokens,
        seconds=seconds,
        g_per_kwh=fine + coarse,
        options=problem.options,
        start=0,
        transitions=problem.transitions,
    )


def beside_highs(name: str, problem: PlanningProblem, repeats: int, **how: Any) -> dict[str, Any]:
    """Plan and solve the flow program, taking turns."""
    solved: list[tuple[float, Solved]] = []

    def peer() -> None:
        before = time.perf_counter()
        found = flow_program(problem, **how)
        solved.append((time.perf_counter() - before, found))

    ours = timed(problem, repeats, beside=peer)
    seconds, theirs = statistics.median(each[0] for each in solved), solved[-1][1]
    least = ours.plan.evaluation.grams
    return {
        **row(name, problem, ours),
        "highs_seconds": seconds,
        "highs_seconds_over_ours": seconds / ours.seconds,
        "highs_grams_over_ours": None if theirs.grams is None else theirs.grams / least,
        "our_bound_over_highs_bound": ours.plan.bound_g / theirs.bound_g,
    }


def measure(chosen: argparse.Namespace) -> Report:
    """Measure the planner: `--repeats` of each case, `--limit` seconds for integer programming."""
    rows, worst = [], {"released": 0.0, "held": 0.0, "gap": 0.0}
    for held in (False, True):
        regime = "held" if held else "released"
        for slack in SLACKS:
            problem = case(720, slack, held=held)
            found = timed(problem, chosen.repeats)
            rows.append(row(f"720 h, {regime}, slack {slack}", problem, found))
            worst[regime] = max(worst[regime], found.seconds)
            worst["gap"] = max(worst["gap"], found.plan.gap)
    fine = case(8640, 1.5, seconds=300.0)
    month = timed(fine, chosen.repeats)
    rows.append(row("30 d of 5 min, released, slack 1.5", fine, month))
    for name, problem in (
        ("720 h, released, slack 1.5, dwell 4 h", case(720, 1.5, dwell_s=4 * HOUR)),
        ("48 h of 5 min, then hours", mixed_case(1.5)),
    ):
        rows.append(row(name, problem, timed(problem, chosen.repeats)))
    week = case(168, 1.5)
    rows.append(beside_highs("168 h beside the flow LP", week, chosen.repeats, relaxed=True))
    how = {"limit_s": chosen.limit, "gap": 1e-4}
    rows.append(beside_highs("168 h beside the MILP to 0.01 %", week, chosen.repeats, **how))
    return Report(
        benchmark="planner",
        rows=tuple(rows),
        goals=(
            Goal(name="solve_720_s", value=worst["released"], goal=0.1, op="<="),
            Goal(name="gap_720", value=worst["gap"], goal=1e-3, op="<="),
            Goal(name="solve_8640_s", value=month.seconds, goal=1.0, op="<="),
            Goal(name="solve_720_held_s", value=worst["held"], goal=1.0, op="<="),
        ),
    )


if __name__ == "__main__":
    sys.exit(run(measure, {"repeats": 5, "limit": 60.0}))
