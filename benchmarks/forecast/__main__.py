"""How good our forecast of carbon intensity is, on recorded zones and years.

    python -m benchmarks.forecast --data DIR [--json]

DIR holds CSV files, one zone each (docs/forecast.md has the format); each gives a row.
`mape_at_24h` is the error 24 hours ahead, `mape_to_24h` the mean over 1 to 24 hours ahead, which
the goals use, percent. `gain`: by how many percent the error is below the anchored profile's;
`decision_value`: what choosing the best 6 of the next 24 hours by the forecast saves, percent of
what hindsight does. `tuned` says what was tuned on what, `seen` what of a row's zone and year is in
that, and each such set has a row of means. Goals count average series of zones *and* years that
nothing was tuned on: a zone tuned on in another year has the same plants, another zone in a year
tuned on has much of the same weather.

A file with day-ahead forecasts of wind, sun and weather (controller/replay/weather_file.py) gives
another kind of row: our forecast with them, beside DACF's own (benchmarks/forecast/dayahead.py).
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.forecast.data import Recorded, read
from benchmarks.forecast.dayahead import DayAheadScore, day_ahead_goals, score_file
from benchmarks.forecast.score import Score, score_recorded
from benchmarks.report import Goal, Report, run
from wattmesh.controller.replay.weather_file import is_weather

REPOSITORY = Path(__file__).resolve().parents[2]
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
TUNED_WORDS = "structure and constants on CISO 2021-22, DE 2022, FR 2022, PL 2022"


class Seen(StrEnum):
    """What tuning saw of a zone-year."""

    NOTHING = "neither zone nor year tuned on"
    YEAR = "zone not tuned on, year tuned on elsewhere"
    ZONE = "zone tuned on in other years"
    ALL = "tuned on"


WORTH_PERCENT = 3.0
"""Zones with a smaller error of the profile are flat: they do not count for the mean gain."""


def measure(chosen: argparse.Namespace) -> Report:
    """Score ours, the anchored profile, 24 h persistence and the last value on recorded zones."""
    folder = Path(chosen.data)
    paths = sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])
    recorded, skipped = read(folder)
    weather = [path for path in paths if path.name in skipped and is_weather(path)]
    # Each process takes a core: threads of its linear algebra would only stand in each other's way.
    for library in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(library, "1")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        scores = list(pool.map(score_recorded, recorded))
        told = list(pool.map(score_file, weather))
    skipped = {name: why for name, why in skipped.items() if name not in {p.name for p in weather}}
    skipped |= {
        path.name: each for path, each in zip(weather, told, strict=True) if isinstance(each, str)
    }
    ahead = [each for each in told if isinstance(each, DayAheadScore)]
    report = _report(list(zip(recorded, scores, strict=True)), skipped)
    return _with_day_ahead(report, ahead, alone=not recorded) if ahead else report


def _with_day_ahead(report: Report, ahead: Sequence[DayAheadScore], *, alone: bool) -> Report:
    """Add the rows and goals of zones with exogenous forecasts; alone, they are all there is."""
    rows = [dict(each.row) for each in ahead]
    rows += [dict(row) for row in report.rows if not alone or "skipped" in row]
    goals = day_ahead_goals(ahead) if alone else (*report.goals, *day_ahead_goals(ahead))
    return Report(benchmark=report.benchmark, rows=tuple(rows), goals=goals)


def _report(both: Sequence[tuple[Recorded, Score]], skipped: Mapping[str, str]) -> Report:
    """Put rows and goals together; only what tuning saw nothing of is judged."""
    rows: list[dict[str, Any]] = [_row(each, told) for each, told in both]
    rows += [{"file": file, "skipped": why} for file, why in skipped.items()]
    rows += _means(both)
    judged = [told for each, told in both if _seen(each) is Seen.NOTHING and _average(each)]
    return Report(benchmark="forecast", rows=tuple(rows), goals=_goals(judged))


def _seen(recorded: Recorded) -> Seen:
    """Say what tuning saw of a zone-year."""
    if (recorded.zone, recorded.year) in TUNED_ON:
        return Seen.ALL
    if recorded.zone in {zone for zone, _ in TUNED_ON}:
        return Seen.ZONE
    return Seen.YEAR if recorded.year in {year for _, year in TUNED_ON} else Seen.NOTHING


def _average(recorded: Recorded) -> bool:
    return recorded.kind == "average"


def _row(recorded: Recorded, told: Score) -> dict[str, Any]:
    return {
        "file": recorded.file,
        "zone": recorded.zone,
        "year": recorded.year,
        "kind": recorded.kind,
        "step_s": recorded.step_s,
        "tuned": TUNED_WORDS,
        "seen": str(_seen(recorded)),
        **told.row,
    }


def _means(both: Sequence[tuple[Recorded, Score]]) -> Iterator[dict[str, Any]]:
    """Give a row for each set of average zone-years: how many, and their mean gain to 24 h."""
    sets: list[tuple[str, frozenset[Seen]]] = [(str(seen), frozenset({seen})) for seen in Seen]
    sets.append(("every zone not tuned on, in any year", frozenset({Seen.NOTHING, Seen.YEAR})))
    for words, seen in sets:
        told = [score for each, score in both if _seen(each) in seen and _average(each)]
        yield {
            "set": words,
            "tuned": TUNED_WORDS,
            "zone_years": len(told),
            f"of_them_over_{WORTH_PERCENT:g}_percent": len(_worth(told)),
            "gain_to_24h": _mean_gain(told),
            "gain_to_24h_lower": min((each.gain_lower for each in told), default=None),
        }


def _worth(judged: Sequence[Score]) -> list[Score]:
    """Leave out flat zones."""
    return [told for told in judged if (told.profile_mape_24h or 0.0) > WORTH_PERCENT]


def _mean_gain(judged: Sequence[Score]) -> float | None:
    """Mean gain to 24 h of the zones that are not flat; None where there is none."""
    worth = _worth(judged)
    return fmean(told.gain_24h for told in worth) if worth else None


def _goals(judged: list[Score]) -> tuple[Goal, ...]:
    """Give the design's figures over the zones that count; None where there is no such zone."""
    counted = [told for told in judged if told.counted]
    total = sum(told.counted for told in counted)
    pooled = 100.0 * sum(told.covered for told in counted) / total if total else None
    zones = [100.0 * told.covered / told.counted for told in counted]
    least, most = min(zones, default=None), max(zones, default=None)
    return (
        Goal(name="gain_24h", value=_mean_gain(judged), goal=8.0, op=">="),
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
