"""How good our forecast of carbon intensity is, on recorded zones and years.

    python -m benchmarks.forecast --data DIR [--json]

DIR holds CSV files, one zone each (docs/forecast.md has the format); each gives a row.
`mape_at_24h` is the error 24 hours ahead, `mape_to_24h` the mean over 1 to 24 hours ahead, which
the goals use, percent. `gain`: by how many percent the error is below the anchored profile's;
`decision_value`: what choosing the best 6 of the next 24 hours by the forecast saves, percent of
what hindsight does. Goals count average series that nothing was tuned on; zone-years in TUNED_ON
are shown and marked.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.forecast_data import Recorded, read
from benchmarks.forecast_score import Score, forecasts, score
from benchmarks.report import Goal, Report, run

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = str(REPOSITORY.parent / "shared" / "data" / "carbon")
TUNED_ON = frozenset(
    {
        ("US-CAL-CISO", 2021),
        ("US-CAL-CISO", 2022),
        ("DE", 2022),
        ("FR", 2022),
        ("PL", 2022),
    }
)
"""Zone-years by which structure and constants were chosen; nobody may be judged by them."""
TUNED_WORDS = "CISO 2021-22, DE 2022, FR 2022, PL 2022"
WORTH_PERCENT = 3.0
"""Zones with a smaller error of the profile are flat: they do not count for the mean gain."""


def measure(chosen: argparse.Namespace) -> Report:
    """Score ours, the anchored profile, 24 h persistence and the last value on recorded zones."""
    recorded, skipped = read(Path(chosen.data))
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        scores = list(pool.map(_score, recorded))
    rows: list[dict[str, Any]] = [
        _row(each, told) for each, told in zip(recorded, scores, strict=True)
    ]
    rows += [{"file": file, "skipped": why} for file, why in skipped.items()]
    judged = [
        told
        for each, told in zip(recorded, scores, strict=True)
        if not _tuned(each) and each.kind == "average"
    ]
    return Report(benchmark="forecast", rows=tuple(rows), goals=_goals(judged))


def _score(recorded: Recorded) -> Score:
    return score(forecasts(recorded))


def _tuned(recorded: Recorded) -> bool:
    return (recorded.zone, recorded.year) in TUNED_ON


def _row(recorded: Recorded, told: Score) -> dict[str, Any]:
    return {
        "file": recorded.file,
        "zone": recorded.zone,
        "year": recorded.year,
        "kind": recorded.kind,
        "step_s": recorded.step_s,
        "tuned_on": TUNED_WORDS,
        "used_for_tuning": _tuned(recorded),
        **told.row,
    }


def _goals(judged: list[Score]) -> tuple[Goal, ...]:
    """Give the design's figures over the zones that count; None where there is no such zone."""
    worth = [told.gain_24h for told in judged if (told.profile_mape_24h or 0.0) > WORTH_PERCENT]
    counted = [told for told in judged if told.counted]
    total = sum(told.counted for told in counted)
    pooled = 100.0 * sum(told.covered for told in counted) / total if total else None
    zones = [100.0 * told.covered / told.counted for told in counted]
    least, most = min(zones, default=None), max(zones, default=None)
    return (
        Goal(name="gain_24h", value=fmean(worth) if worth else None, goal=8.0, op=">="),
        Goal(
            name="worst_zone_lower",
            value=min((told.gain_lower for told in judged), default=None),
            goal=-1.0,
            op=">=",
        ),
        Goal(name="coverage80", value=pooled, goal=75.0, op=">="),
        Goal(name="coverage80_most", value=pooled, goal=85.0, op="<="),
        Goal(name="coverage80_zone_least", value=least, goal=70.0, op=">="),
        Goal(name="coverage80_zone_most", value=most, goal=90.0, op="<="),
    )


if __name__ == "__main__":
    sys.exit(run(measure, {"data": DATA}))
