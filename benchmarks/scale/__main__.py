"""What 1,000 runs on 10,000 GPUs cost the daemon.

    python -m benchmarks.scale [--json] [--runs 1000] [--gpus 10000] [--turns 5] [--days 30]

cycle    turns of the real cycle over a real journal (SQLite, and PostgreSQL where its server is
         installed): observe, decide, record, snapshot and screen, with a plan of each run from the
         planning process. All runs and nodes report before each turn; their time is a row. Beside
         it: turns before there is any plan, in which the price rule decides about every run.
plans    how long the planning process takes for the plans of all runs, one after the other.
month    the daemon's parts under a virtual clock (month.py): memory and journal.

Nothing here was tuned on anything. The joint plan of so many runs is not made by any command yet,
so `joint_plan_s` is not measured.
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
from benchmarks.scale.site import Crowd, ScaleSite, scale_site, spread
from tests.postgresql import find_programs, running

MONTH_LANES = 16
PLANNED_WITHIN_S = 420.0
POLL_S = 0.5


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
    return {
        "case": f"{url.partition(':')[0]}: {crowd.runs} runs on {crowd.gpus} GPUs",
        "cycle_median_s": full["median_s"],
        "cycle_worst_s": full["worst_s"],
        "cycle_without_plans_s": bare["worst_s"],
        "plans_s": plans_s,
        "reports_s": spread(told)["median_s"],
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
    cycle_s = max(row["cycle_worst_s"] for row in rows[:-1])
    return Report(
        benchmark="scale",
        rows=tuple(rows),
        goals=(
            Goal(name="cycle_s", value=cycle_s, goal=5, op="<="),
            Goal(name="joint_plan_s", value=None, goal=60, op="<="),
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
        "detail_kept_days": KEPT_DAYS,
    }


if __name__ == "__main__":
    sys.exit(run(measure, {"runs": 1000, "gpus": 10_000, "turns": 5, "days": 30}))
