"""The report of a month agrees with the raw rows, and every sabotaged twin is caught."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.accounts.test_report import HOUR, SITE, START, booked, month
from tests.audit import independent_report
from wattmesh.controller.accounting.audit import audit
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.views import as_json
from wattmesh.reconfig.wire.messages import Finish

__all__ = ["booked"]

Twin = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture
def found(booked: Journal) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report and the audit of its run, as the commands write them."""
    done = Finish(run="r", incarnation="i1", attempt=1, step=9, tokens=88_000, reason="done")
    now = START + 5 * HOUR
    booked.runs.finish(done, owner_uid=1000, now=START + 4 * HOUR)
    run = booked.runs.find("llm", now)
    assert run is not None
    answers = as_json(month(booked, now)), as_json(audit(booked, run, SITE.signal))
    report, rows = json.loads(json.dumps(answers))
    return report, rows


def test_the_script_agrees_to_the_microgram(
    found: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    """Lines, totals, days, contracts and facility energy: exit 0."""
    files = [tmp_path / "report.json", tmp_path / "audit.json"]
    for path, answer in zip(files, found, strict=True):
        path.write_text(json.dumps(answer))
    script = [sys.executable, "-I", independent_report.__file__, *map(str, files)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{found[0]['carbon_ug']} ug  1 runs audited" in done.stdout


def line(scenario: str, name: str, by: int) -> Twin:
    """Change one line of the report."""

    def sabotage(report: dict[str, Any], _: dict[str, Any]) -> None:
        next(each for each in report["lines"] if each["scenario"] == scenario)[name] += by

    return sabotage


def entry(part: str, name: str, by: int) -> Twin:
    """Change the last entry of a part of the report."""

    def sabotage(report: dict[str, Any], _: dict[str, Any]) -> None:
        report[part][-1][name] += by

    return sabotage


def row(name: str, by: int) -> Twin:
    """Change a raw row of the month."""

    def sabotage(_: dict[str, Any], rows: dict[str, Any]) -> None:
        rows["actual"][-1][name] += by

    return sabotage


def netted(report: dict[str, Any], _: dict[str, Any]) -> None:
    """Take the contract's share off the location-based figure."""
    report["carbon_ug"] = report["carbon_ug"] * 4 // 10


def dropped(report: dict[str, Any], _: dict[str, Any]) -> None:
    """Leave the idle GPUs out."""
    report["subjects"] = [each for each in report["subjects"] if each["subject"] != "idle"]


def per_token(report: dict[str, Any], _: dict[str, Any]) -> None:
    """Leave embodied carbon out of the grams per token."""
    subject = report["subjects"][-1]
    subject["tokens"], subject["sci_g"] = 1_000, subject["carbon_ug"] / 1e6 / 1e-6


TWINS: dict[str, Twin] = {
    "a location-based line": line("location", "carbon_ug", 1),
    "a lifecycle line": line("lifecycle", "carbon_ug", 1),
    "a contract's joules": line("market", "energy_mj", -5),
    "a total": entry("totals", "carbon_ug", 1),
    "a run": entry("subjects", "carbon_ug", -1),
    "facility energy": entry("subjects", "facility_mj", 1_000),
    "a day": entry("days", "carbon_ug", 7),
    "a row's energy": row("energy_mj", 1_000),
    "a row's grams": row("carbon_ug", 1),
    "a row's PUE": row("pue_milli", 100),
    "netting": netted,
    "a dropped line": dropped,
    "grams per token": per_token,
}


def test_the_script_catches_every_sabotaged_twin(
    found: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """One number changed or one line dropped: it is named."""
    assert independent_report.differences(found[0], [found[1]]) == []
    missed = []
    for name, sabotage in TWINS.items():
        report, rows = copy.deepcopy(found)
        sabotage(report, rows)
        if not independent_report.differences(report, [rows]):
            missed.append(name)
    assert not missed


def test_a_run_that_was_not_audited_is_named(
    found: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    """Silence is no agreement; and nonsense is exit 2."""
    assert any(
        "no audit was given" in each for each in independent_report.differences(found[0], [])
    )
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert independent_report.main([str(path)]) == 2
