"""The independent script agrees with the audit of a real journal, and with no sabotaged twin."""

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.accounts.build import (
    GPUS,
    SIGNAL,
    accounts,
    after,
    book,
    energy,
    finish,
    intensity,
    progress,
    register,
    slot,
)
from tests.audit import independent
from wattmesh.controller.books.budget import audit
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.views import as_json

Twin = Callable[[dict[str, Any]], None]


def written(journal: Journal) -> dict[str, Any]:
    """Give the audit of the only run as `--json` prints it."""
    row = journal.runs.find("r", after(10**6))
    assert row is not None
    text = json.dumps(as_json(audit(journal, row, str(SIGNAL))))
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@pytest.fixture
def found(journal: Journal) -> dict[str, Any]:
    """The audit of a finished run with odd numbers, and a GPU that was not always seen."""
    register(journal, tokens=1_234)
    progress(journal, now=after(88.8), tokens=78_901)
    finish(journal, now=after(88.8), tokens=78_901)
    for number in range(3):
        for place, gpu in enumerate(GPUS):
            book(journal, energy(number, 9_876_543 + 1_111 * place + number, gpu_uuid=gpu))
    book(journal, energy(1, None, gpu_uuid="g4", unobserved_ms=50, upper_mj=35_001))
    intensity(journal, (101.3, 207.7, 333.1, 80.0))
    accounts(journal).price(after(120))
    return written(journal)


def verdict(found: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script on an audit, as anybody would."""
    path = folder / "audit.json"
    path.write_text(json.dumps(found))
    script = [sys.executable, "-I", independent.__file__, str(path)]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def test_the_script_agrees_to_the_microgram(found: dict[str, Any], tmp_path: Path) -> None:
    """Settled, with a saving: exit 0; and the same from standard input."""
    assert found["saved_ug"] is not None
    assert found["unobserved_ug"] > 0
    answer = verdict(found, tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"saved_ug       {found['saved_ug']}" in answer.stdout
    with (tmp_path / "audit.json").open() as stream:
        script = [sys.executable, "-I", independent.__file__]
        assert subprocess.run(script, stdin=stream, check=False).returncode == 0


def change(rows: str, field: str, by: int, number: int = 0) -> Twin:
    """Change a number of one row."""

    def sabotage(found: dict[str, Any]) -> None:
        found[rows][number][field] += by

    return sabotage


def drop(rows: str) -> Twin:
    """Drop a row."""

    def sabotage(found: dict[str, Any]) -> None:
        del found[rows][1]

    return sabotage


def repeat(rows: str) -> Twin:
    """Count a row twice."""

    def sabotage(found: dict[str, Any]) -> None:
        found[rows].append(found[rows][0])

    return sabotage


def figure(name: str, by: int) -> Twin:
    """Change one figure."""

    def sabotage(found: dict[str, Any]) -> None:
        found[name] += by

    return sabotage


TWINS = {
    "an actual row's energy": change("actual", "energy_mj", 100),
    "an actual row's energy by one": change("actual", "energy_mj", 1),
    "an actual row's intensity": change("actual", "g_milli_per_kwh", 1000),
    "an actual row's grams": change("actual", "carbon_ug", -1),
    "a baseline row's energy": change("reference", "energy_mj", 1_000),
    "a baseline row's intensity": change("reference", "g_milli_per_kwh", 1000),
    "a baseline row's grams": change("reference", "carbon_ug", 1),
    "the last baseline row's tokens": change("reference", "tokens", 500, -1),
    "an energy row": change("energy", "energy_mj", 1),
    "unobserved joules": change("energy", "upper_mj", 100_000),
    "a dropped actual row": drop("actual"),
    "a dropped baseline row": drop("reference"),
    "a dropped energy row": drop("energy"),
    "a repeated actual row": repeat("actual"),
    "a repeated baseline row": repeat("reference"),
    "the tokens": figure("tokens", -1_000),
    "more tokens than the baseline has": figure("tokens", 1_000),
    "the saving": figure("saved_ug", 1),
    "what was spent": figure("actual_ug", -1),
    "the baseline's grams": figure("reference_ug", 1),
    "earlier sums": figure("earlier_reference_ug", 7),
}


def test_the_script_catches_every_sabotaged_twin(found: dict[str, Any], tmp_path: Path) -> None:
    """One number changed, one row dropped or repeated: exit 1, with the place in words."""
    missed = []
    for name, sabotage in TWINS.items():
        twin = copy.deepcopy(found)
        sabotage(twin)
        if not independent.differences(twin):
            missed.append(name)
    assert not missed
    twin = copy.deepcopy(found)
    TWINS["an actual row's intensity"](twin)
    answer = verdict(twin, tmp_path)
    assert answer.returncode == 1
    assert "DIFFERS  actual row 2026-11-20T12:00:00Z g0" in answer.stdout


def test_a_run_that_still_trains_is_audited_too(journal: Journal) -> None:
    """Joules booked since grams were last, slots without grams, a baseline that is behind."""
    register(journal)
    for at_s, tokens in ((20, 19_000), (50, 52_000)):
        progress(journal, now=after(at_s), tokens=tokens)
        book(journal, energy(0, 5_000_000 + tokens), energy(at_s // 30, 1_000))
        intensity(journal, (100.0,))
        accounts(journal).price(after(at_s))
        book(journal, energy(at_s // 30, 2_000 + tokens))
        assert written(journal)["unbooked_mj"] > 0
        assert not independent.differences(written(journal))


def test_the_audit_holds_while_retention_sums_slots_up(journal: Journal) -> None:
    """The oldest slots leave their sums behind."""
    register(journal)
    progress(journal, now=after(88), tokens=80_000)
    finish(journal, now=after(88), tokens=80_000)
    book(journal, *(energy(number, 7_000_001) for number in range(3)))
    intensity(journal, (100.0, 200.0, 300.0))
    accounts(journal).price(after(120))
    saved = written(journal)["saved_ug"]
    for until in (slot(2), slot(9)):
        journal.retention.roll_up(until + timedelta(microseconds=1))
        found = written(journal)
        assert found["saved_ug"] == saved
        assert not independent.differences(found)


def test_nonsense_is_refused(tmp_path: Path) -> None:
    """Not an audit: exit 2 and a sentence."""
    answer = verdict({"name": "llm"}, tmp_path)
    assert answer.returncode == 2
    assert "cannot be read" in answer.stderr


def test_the_script_is_independent() -> None:
    """It imports the standard library only."""
    tree = ast.parse(Path(independent.__file__).read_text())
    names = {
        each.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for each in node.names
    } | {
        (node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert names <= set(sys.stdlib_module_names)
