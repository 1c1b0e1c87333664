"""What 1,000 runs on 10,000 GPUs cost the daemon.

    python -m benchmarks.scale [--json] [--runs 1000] [--gpus 10000] [--turns 5] [--days 30]

cycle    turns of the real cycle over a real journal (SQLite, and PostgreSQL where its server is
         installed): observe, decide, record, snapshot and screen, with a plan of each run from the
         planning process. All runs and nodes report before each turn; their time is a row. Beside
         it: turns before there is any plan, in which the price rule decides about every run.
plans    how long the planning process takes for the plans of all runs, one after the other.
joint    a cap is announced: seconds from then until all runs have their rooms by a joint plan, the
         question, the start of the process and the wire included, with the cycle turning and runs
         reporting meanwhile; its certified gap, and the worst turn.
ingest   rows of joules a second that nodes deliver, a row for each of 8 GPUs in a transaction.
month    the daemon's parts under a virtual clock (month.py): memory and journal.

The joint plan's slots and limits of time were chosen on runs like these, on a made-up grid.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.report import Goal, Report, run
from benchmarks.scale.month import KEPT_DAYS, Grown, month
from benchmarks.scale.site import GPUS_PER_NODE, Crowd, ScaleSite, scale_site, spread
from tests.postgresql import find_programs, running

MONTH_LANES = 16
PLANNED_WITHIN_S = 1200.0
JOINT_WITHIN_S = 300.0
CAP_W_PER_GPU = 480.0
"""Of the announced cap: what GPUs draw at two thirds of their clocks, so that it binds."""

POLL_S = 0.5
INGEST_SLOTS = 3
TURNS = ("cycle_worst_s", "cycle_worst_meanwhile_s")


def cycles(folder: Path, url: str, crowd: Crowd, turns: int) -> dict[str, Any]:
    """Turn the cycle without plans, then with a plan of each run; return a row.

    Raises:
        RuntimeError: a turn failed, or the plans did not come in time.
    """
    with scale_site(folder, url, crowd) as site:
        site.poll()
        site.register()
        site.report()
        bare = spread([site.turn_s() for _ in range(2)])
        plans_s = _planned_s(site)
        told = [_report_s(site) for _ in range(turns)]
        planned = []
        for _ in range(turns):
            site.report()
            planned.append(site.turn_s())
        if site.planned() < crowd.runs:
            raise RuntimeError(f"only {site.planned()} of {crowd.runs} runs have a plan")
        full = spread(planned)
        joint = _joint(site)
        ingest_s = site.ingest_s(INGEST_SLOTS)
    return {
        "case": f"{url.partition(':')[0]}: {crowd.runs} runs on {crowd.gpus} GPUs",
        "cycle_median_s": full["median_s"],
        "cycle_worst_s": full["worst_s"],
        "cycle_without_plans_s": bare["worst_s"],
        "plans_s": plans_s,
        "reports_s": spread(told)["median_s"],
        "ingest_rows_per_s": INGEST_SLOTS * crowd.nodes * GPUS_PER_NODE / ingest_s,
        **joint,
    }


def _joint(site: ScaleSite) -> dict[str, Any]:
    """Announce a cap, and turn the cycle until there is a joint plan.

    Raises:
        RuntimeError: the joint plan did not come in time, or there was none.
    """
    site.announce_cap(site.crowd.gpus * CAP_W_PER_GPU)
    began_s, turns = time.monotonic(), []
    while not site.joint().rooms:
        state = site.joint()
        # A reason may pass: on a busy machine nodes were not heard in time for one turn.
        if state.trouble or time.monotonic() > began_s + JOINT_WITHIN_S:
            raise RuntimeError(f"no joint plan: {state.trouble or state.reason or 'it is late'}")
        site.report()
        turns.append(site.turn_s())
    state = site.joint()
    return {
        "joint_plan_s": time.monotonic() - began_s,
        "joint_solve_s": state.solve_s,
        "joint_gap": state.gap,
        "cycle_worst_meanwhile_s": spread(turns)["worst_s"],
    }


def _report_s(site: ScaleSite) -> float:
    began_s = time.monotonic()
    site.report()
    return time.monotonic() - began_s


def _planned_s(site: ScaleSite) -> float:
    """Wait until every run has a plan, and turn the cycle as it would meanwhile."""
    began_s = time.monotonic()
    while site.planned() < site.crowd.runs:
        if time.monotonic() > began_s + PLANNED_WITHIN_S:
            raise RuntimeError(f"{site.planned()} plans in {PLANNED_WITHIN_S:g} s")
        time.sleep(POLL_S)
    return time.monotonic() - began_s


def databases(folder: Path, stack: ExitStack) -> Iterator[str]:
    """Give the addresses of an SQLite file, and of a private PostgreSQL where that is installed."""
    yield f"sqlite:///{folder}/journal.db"
    programs = find_programs()
    if programs is not None:
        server = stack.enter_context(running(programs))
        yield stack.enter_context(server.fresh_database())


def measure(chosen: argparse.Namespace) -> Report:
    """Measure cycle, plans, memory and journal of a large cluster."""
    crowd, rows = Crowd(runs=chosen.runs, gpus=chosen.gpus), []
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="wattmesh-scale-"))
        for url in databases(Path(name), stack):
            folder = Path(name) / url.partition(":")[0]
            folder.mkdir()
            rows.append(cycles(folder, url, crowd, chosen.turns))
    grown = month(chosen.days, MONTH_LANES)
    rows.append(_month_row(grown))
    cycle_s = max(row[each] for row in rows[:-1] for each in TURNS)
    joint_s = max(row["joint_plan_s"] for row in rows[:-1])
    return Report(
        benchmark="scale",
        rows=tuple(rows),
        goals=(
            Goal(name="cycle_s", value=cycle_s, goal=5, op="<="),
            Goal(name="joint_plan_s", value=joint_s, goal=60, op="<="),
            Goal(name="rss_growth_mib", value=grown.rss_growth_mib, goal=2, op="<="),
            Goal(name="journal_mb_per_gpu_year", value=grown.mb_per_gpu_year, goal=2, op="<="),
        ),
    )


def _month_row(grown: Grown) -> dict[str, Any]:
    return {
        "case": f"{grown.days} virtual days, {grown.gpus} invented GPUs",
        "rss_mib": grown.rss_mib,
        "rss_growth_mib": grown.rss_growth_mib,
        "journal_kb_per_gpu_day": grown.detail_kb,
        "journal_kb_per_gpu_day_for_good": grown.lasting_kb,
        "journal_kb_of_the_cluster": grown.cluster_kb,
        "detail_kept_days": KEPT_DAYS,
    }


if __name__ == "__main__":
    sys.exit(run(measure, {"runs": 1000, "gpus": 10_000, "turns": 5, "days": 30}))
