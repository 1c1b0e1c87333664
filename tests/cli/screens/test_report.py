"""The report of a month on a screen, as CSV, JSON and a picture: the same figures everywhere."""

import csv
import io
import json
import re
import struct
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.accounts.test_report import ACCOUNTING, GRID, HOUR, ZONE, points, row
from tests.builders.journals import fresh_file
from tests.builders.runs import UID, register
from tests.cli.screens.test_screens import plain
from wattmesh.controller.accounting.accounts import Accounts
from wattmesh.controller.accounting.budgets.periods import month_named, period_of
from wattmesh.controller.accounting.report.month import report
from wattmesh.controller.accounting.report.reported import reported
from wattmesh.controller.accounting.report.views import MonthReport
from wattmesh.controller.cli.accounting import report_picture
from wattmesh.controller.cli.accounting.report_csv import COLUMNS, as_csv
from wattmesh.controller.cli.accounting.report_screen import screen
from wattmesh.controller.cli.main import main
from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import Signals
from wattmesh.controller.settings.read import load
from wattmesh.controller.views import as_json
from wattmesh.reconfig.wire.messages import Finish

NOVEMBER = month_named("2024-11", ZONE)
"""Over, whenever the tests are run."""

START = NOVEMBER.start
IDLE = {"run": "", "line": "idle"}
SETTINGS = """\
[journal]
url = "sqlite:///{folder}/journal.db"
[site]
timezone = "Asia/Kolkata"
energy_boundary = "facility"
pue = 1.25
[[site.market_based]]
label = "wind"
g_per_kwh = 0.0
share = 0.5
starts = 2024-01-01T00:00:00Z
ends = 2025-01-01T00:00:00Z
[budget.cluster]
grams = 2000.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal whose daemon is gone: a month with a finished run, idle GPUs and a dark hour."""
    (tmp_path / "wattmesh.toml").write_text(SETTINGS.format(folder=tmp_path))
    journal = fresh_file(tmp_path / "journal.db")
    register(journal, now=START + HOUR)
    points(journal, ACCOUNTING, [150.0 + n for n in range(60)], START - HOUR / 2)
    dark = row(START, None, gpu_uuid="g3", unobserved_ms=60_000, upper_mj=42_000, **IDLE)
    rows = [dark]
    for number in range(60):
        at = START + number * HOUR
        rows.append(row(at, 900_000_000 + number))
        rows.append(row(at, 60_000_000, gpu_uuid="g2", **IDLE))
    journal.ledger.book(rows, [])
    Accounts(journal, ACCOUNTING, GRID, 1250).price(START + 60 * HOUR)
    done = Finish(run="r", incarnation="i1", attempt=1, step=9, tokens=88_000, reason="done")
    journal.runs.finish(done, owner_uid=UID, now=START + 59 * HOUR)
    journal.close()
    return tmp_path


def made(folder: Path) -> MonthReport:
    """Report it, as a daemon with these settings and no further signal would."""
    journal = Journal.open(f"sqlite:///{folder}/journal.db")
    settings = load(folder / "wattmesh.toml")
    accounting = SignalFacts(signal=ACCOUNTING, interval_s=3600.0, stale_after_s=7200.0)
    site = reported(settings, Signals(accounting=accounting))
    found = report(journal, NOVEMBER, site, START + 61 * HOUR)
    journal.close()
    return found


def ask(folder: Path, *words: str) -> int:
    """Type the command, without a daemon."""
    config = str(folder / "wattmesh.toml")
    return main(["report", "--offline", config, "--month", NOVEMBER.name, *words])


def test_the_screen_names_scenario_signal_and_boundary(folder: Path) -> None:
    """Scope 2 first with its signal, both energies with the PUE, and what nobody measured."""
    view = as_json(made(folder))
    text = plain(screen(view))
    assert "November 2024, the whole cluster (Asia/Kolkata)   running" in text
    assert "energy     IT 16 kWh · facility 20 kWh (PUE 1.25)" in text
    assert "carbon     location-based (Scope 2)" in text
    assert "average (GB, neso), neso:GB:average:direct:CO2" in text
    assert "market-based" in text
    assert "wind, 8 kWh" in text
    assert "1 min unobserved (at most 42 J est, 2.19 mg est more)" in text
    assert "SCI        - (a run's embodied carbon" in text
    assert "Market-based factors are excluded" in text
    assert "quality    measured 100.0 %" in text
    assert "simulated: power_w" in text


def test_a_month_of_which_nothing_was_read_is_a_dash_and_not_zero(folder: Path) -> None:
    """Its time and what was drawn at most stand in the first line, not in a run's notes alone."""
    lines = plain(screen(as_json(made(folder)))).splitlines()
    (energy,) = (each for each in lines if each.startswith("energy"))
    assert energy.endswith(" · 1 min of GPU time were not read (at most 42 J est more)")
    journal = Journal.open(f"sqlite:///{folder}/journal.db")
    with journal.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM emission_rows")
        connection.exec_driver_sql("DELETE FROM energy WHERE gpu_uuid != 'g3'")
    journal.close()
    lines = plain(screen(as_json(made(folder)))).splitlines()
    (energy,) = (each for each in lines if each.startswith("energy"))
    assert "IT - · facility - (PUE 1.25) · 1 min of GPU time were not read" in energy
    (idle,) = (each for each in lines if each.startswith("idle"))
    assert idle.split()[:4] == ["idle", "-", "-", "-"]
    picture = report_picture._subtitle(as_json(made(folder)))
    assert picture.startswith("- · 1 min of GPU time were not read")
    assert not re.search(r"\b0 (J|g)\b", idle + energy + picture)


def test_a_lifecycle_signal_is_never_called_scope_2(folder: Path) -> None:
    """It has upstream emissions in it, which are Scope 3."""
    found = made(folder)
    lifecycle = found.signal.replace("direct:CO2", "lifecycle:CO2eq")
    totals = tuple(
        replace(each, signal=lifecycle) if each.scenario == "location" else each
        for each in found.totals
    )
    text = plain(screen(as_json(replace(found, signal=lifecycle, totals=totals))))
    assert "location-based (lifecycle)" in text
    assert "Scope 2" not in text


def test_what_has_no_price_is_a_dash_and_not_zero(folder: Path) -> None:
    """Sabotaged figures: a month without any price shows no gram."""
    found = made(folder)
    dark = replace(
        found,
        carbon_ug=0,
        unpriced_mj=found.energy_mj,
        totals=tuple(
            replace(each, carbon_ug=0, unpriced_mj=each.energy_mj) for each in found.totals
        ),
        subjects=tuple(
            replace(each, carbon_ug=0, unpriced_mj=each.energy_mj) for each in found.subjects
        ),
    )
    lines = plain(screen(as_json(dark))).splitlines()
    (scope2,) = (each for each in lines if "Scope 2" in each)
    assert "   -   " in scope2
    assert "16 kWh without a price" in scope2
    assert not any(" 0 g" in each for each in lines if each.startswith("llm"))


def test_csv_rows_add_up_to_every_total(folder: Path) -> None:
    """Exactly, in micrograms; units stand in the header."""
    view = as_json(made(folder))
    rows = list(csv.DictReader(io.StringIO(as_csv(view))))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(view["lines"])
    grams: Counter[tuple[str, str]] = Counter()
    for each in rows:
        grams[each["scenario"], each["signal"]] += int(each["carbon_gco2"].replace(".", ""))
    assert grams == {
        (each["scenario"], each["signal"]): each["carbon_ug"] for each in view["totals"]
    }
    assert {each["kind"] for each in rows} == {"run", "line"}


def test_a_name_is_never_a_formula(folder: Path) -> None:
    """Whoever names a run =cmd() gets text in the spreadsheet."""
    found = made(folder)
    evil = replace(found, lines=tuple(replace(each, subject="=1+1") for each in found.lines))
    assert "'=1+1" in as_csv(as_json(evil))


def test_text_json_and_csv_come_without_a_daemon(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read from the journal alone, to the terminal or into a file."""
    assert ask(folder) == 0
    assert "November 2024, the whole cluster" in capsys.readouterr().out
    assert ask(folder, "--format", "json") == 0
    first = json.loads(capsys.readouterr().out)
    assert ask(folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["carbon_ug"] == first["carbon_ug"]
    out = folder / "report.csv"
    assert ask(folder, "--format", "csv", "-o", str(out)) == 0
    assert out.read_text().startswith(
        "month,timezone,state,subject,kind,run,scenario,signal,stand_in,energy_j"
    )
    assert ask(folder, "-o", str(folder / "report.txt")) == 0
    assert "Scope 2" in (folder / "report.txt").read_text()
    assert first["carbon_ug"] == made(folder).carbon_ug


def test_a_picture_is_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A PNG of a readable size; a folder that is not there is one sentence."""
    out = folder / "november.png"
    assert ask(folder, "--format", "png", "-o", str(out)) == 0
    data = out.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", data[16:24])
    assert min(width, height) > 900
    assert ask(folder, "--format", "csv", "-o", str(folder / "no" / "where.csv")) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("month", ["2026-13", "november", "2026", "9999-12"])
def test_a_month_that_is_none_is_refused(
    folder: Path, month: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the word that was typed, and how to write one."""
    words = ["report", "--offline", str(folder / "wattmesh.toml"), "--month", month]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "write one like 2026-10" in said or "has not begun" in said


def test_months_have_the_length_their_clocks_gave_them() -> None:
    """In London, March lacks an hour and October has one more."""
    lengths = [
        month_named(name, "Europe/London").end - month_named(name, "Europe/London").start
        for name in ("2026-03", "2026-10")
    ]
    assert [each / timedelta(hours=1) for each in lengths] == [743, 745]
    assert period_of(START, "month", ZONE) == NOVEMBER


def test_a_daemon_gives_the_same_answer_as_its_journal(folder: Path) -> None:
    """The view is plain JSON: what is kept at closing is what is shown."""
    view: dict[str, Any] = as_json(made(folder))
    assert json.loads(json.dumps(view)) == view
