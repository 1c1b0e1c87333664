"""A whole year of a site, lived through by the real daemon's parts under a virtual clock.

    python -m benchmarks.year [--json] [--first 1] [--months 12] [--minutes 60] [--keep FOLDER]

Twelve months in India (UTC+5:30) with 48 runs; each month the carbon provider fails somehow, the
daemon moves one run as it decides itself and one as an operator asks, some months the GPUs fall
silent, an agent is gone for a day or runs are killed; some switches fail, one GPU is never read, in
June the GPUs begin to draw a fifth less than their catalogues say, in September the accounting
signal is changed. Every hour of both ledgers is compared with a sum made of true power and true
intensities, what nobody read with its bound, and each saving with the true one. Power, training
(replay's simulated run) and grid are invented; journal, sampler, cycle, accounts, budgets and
providers (over HTTP) are the daemon's own. It ends early when the minutes are spent, and says
where. `--keep` prints what `wattmesh budget`, `budget --audit` and `report --month` say of that
year into files.
"""

import argparse
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from benchmarks.report import Goal, Report, run
from benchmarks.year.life import Life, lived
from benchmarks.year.oracle import OTHERS, Checked
from benchmarks.year.run import HOUR
from benchmarks.year.scenarios import Scenario, whole_year
from wattmesh.controller.cli.main import main as wattmesh
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.integrations.carbon.grid_server.grids import Measure
from wattmesh.policies.accounting.baseline import price_ug

OTHER_ZONE = "DE"


def shortened(scenario: Scenario, first: int, months: int) -> Scenario:
    """Give the months of a scenario from the first one on, 1 for January."""
    start = datetime(2026, first, 1, tzinfo=scenario.start.tzinfo)
    last = first + months
    end = scenario.end if last > 12 else datetime(2026, last, 5, tzinfo=scenario.start.tzinfo)
    jobs = [job for job in scenario.jobs if start <= job.start < end]
    return replace(scenario, start=start, end=end, jobs=jobs)


def sabotaged(life: Life) -> list[tuple[str, bool]]:
    """Spoil one row of each scenario in three ways; say which were caught.

    And darkness that is forgotten, and savings told of ten times the emissions.
    """
    dear = {hour: 10 * price for hour, price in life.checked.price_mg.items()}
    return [
        *(each for scenario in ("actual", *OTHERS) for each in _spoiled(life, scenario)),
        ("darkness forgotten", bool(life.forgotten())),
        ("savings of a dearer grid", bool(life.flattered(dear)[0])),
    ]


def _spoiled(life: Life, scenario: str) -> list[tuple[str, bool]]:
    """Spoil a row of the newest comparable day on which a scenario had grams of its own."""
    day = (life.now - 10 * 24 * HOUR).replace(hour=0, minute=0, second=0)
    span, rows, mine = (day, day), list[EmissionRow](), list[EmissionRow]()
    while not mine and life.scenario.start < day:
        span = (day, day + 24 * HOUR)
        rows = list(life.rows(*span))
        # Of what was dark in part, the judge allows for a band.
        mine = [row for row in rows if row.scenario == scenario and not row.upper_mj]
        mine = [row for row in mine if row.carbon_ug]
        day -= 24 * HOUR
    ways = ("a slot dropped", "a slot twice", "another zone's price")
    if not mine or life.judged(tuple(rows), span).wrong:
        return [(f"{way}, {scenario}", False) for way in ways]
    victim = max(mine, key=lambda row: row.carbon_ug or 0)
    zone = life.simulated.server.grid.truth(
        OTHER_ZONE, victim.slot_start.replace(minute=0), HOUR, Measure.LIFECYCLE
    )
    rate = (round(1000 * zone), victim.pue_milli)
    foreign = replace(victim, carbon_ug=price_ug(victim.energy_mj or 0, *rate))
    rest = [row for row in rows if row is not victim]
    spoiled = (rest, [*rows, victim], [*rest, foreign])
    return [
        (f"{way}, {scenario}", bool(life.judged(tuple(some), span).wrong))
        for way, some in zip(ways, spoiled, strict=True)
    ]


def _row(life: Life, checked: Checked, took_s: float) -> dict[str, object]:
    """Say what was lived through."""
    totals = life.simulated.journal.ledger.totals()
    first, last = life.scenario.whole
    return {
        "case": f"{first:%Y-%m-%d} to {last:%Y-%m-%d}, power and grid simulated",
        "hours_compared": checked.hours,
        "rows_compared": checked.rows,
        "hours_estimated": checked.estimated_hours,
        "actual_true_g": checked.true_ug["actual"] / 1e6,
        "actual_booked_g": checked.booked_ug["actual"] / 1e6,
        "baseline_true_g": checked.true_ug["baseline"] / 1e6,
        "baseline_booked_g": checked.booked_ug["baseline"] / 1e6,
        "dark_true_g": checked.dark_ug / 1e6,
        "dark_at_most_g": checked.bound_ug / 1e6,
        "savings_compared": life.savings,
        "totals_kept": len(totals),
        "requests": len(life.simulated.server.asked),
        "took_s": took_s,
    }


def _goals(life: Life, checked: Checked) -> tuple[Goal, ...]:
    """Give what must hold."""
    off = abs(checked.booked_ug["actual"] / max(1.0, checked.true_ug["actual"]) - 1)
    caught = sabotaged(life)
    share = sum(each for _, each in caught) / len(caught)
    return (
        Goal(name="wrong_hours", value=len(checked.wrong), goal=0, op="=="),
        Goal(name="worst_actual_share", value=off, goal=1e-9, op="<="),
        Goal(name="false_savings", value=len(life.flattered()[0]), goal=0, op="=="),
        Goal(name="other_failures", value=len(life.failures), goal=0, op="=="),
        Goal(name="controls_caught", value=share, goal=1, op="=="),
    )


def keep(life: Life, folder: Path) -> None:
    """Write what the screens say of the journal as it stands."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = life.simulated.parts
    parts.api.start()
    url = f"--socket={parts.loop_facts.settings.api.socket}"
    run_name = life.simulated.journal.runs.all(life.now)[-1].name
    screens = {
        "budget.txt": ["budget", url],
        "audit.txt": ["budget", "--audit", run_name, url],
        "report.txt": ["report", "--month", f"{life.scenario.start:%Y-%m}", url],
    }
    for name, words in screens.items():
        with (folder / name).open("w") as file, redirect_stdout(file):
            try:
                wattmesh(words)
            except SystemExit as end:
                print(f"exit {end.code}")


def measure(chosen: argparse.Namespace) -> Report:
    """Live through the year."""
    began_s = time.monotonic()
    scenario = shortened(whole_year(), chosen.first, chosen.months)
    with (
        tempfile.TemporaryDirectory(prefix="wattmesh-year-") as folder,
        lived(scenario, Path(folder), chosen.minutes) as life,
    ):
        checked, took_s = life.checked, time.monotonic() - began_s
        for each in (*checked.wrong[:20], *life.failures[:20]):
            print(each, file=sys.stderr)
        if chosen.keep:
            keep(life, Path(chosen.keep))
        row, goals = _row(life, checked, took_s), _goals(life, checked)
    return Report(benchmark="year", rows=(row,), goals=goals)


if __name__ == "__main__":
    sys.exit(run(measure, {"first": 1, "months": 12, "minutes": 60.0, "keep": ""}))
