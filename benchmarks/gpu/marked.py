"""The tests marked `gpu`, as a part of the measurement: how many passed, and which did not."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu.chosen import Chosen
from benchmarks.report import Goal, Report

REPOSITORY = Path(__file__).parents[2]
MARK = "pytest.mark.gpu"
SECONDS = 420.0
PASSED = ("passed", "system-out", "properties")
"""What a test case holds in the report, apart from failures, errors and skips."""


def files() -> list[str]:
    """List the files that hold such tests, so that no other file need be imported."""
    found = (REPOSITORY / "tests").rglob("test_*.py")
    return sorted(str(path) for path in found if MARK in path.read_text("utf-8"))


def by_file(found: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """One row for each file, with the names of those that did not pass."""
    files_found = dict.fromkeys(each["test"].partition("::")[0] for each in found)
    rows = []
    for file in files_found:
        mine = [each for each in found if each["test"].partition("::")[0] == file]
        others = [each["test"].partition("::")[2] for each in mine if each["result"] not in PASSED]
        rows.append(
            {
                "file": file,
                "tests": len(mine),
                "passed": len(mine) - len(others),
                "not_passed": ", ".join(others) or "none",
                "seconds": sum(each["seconds"] for each in mine),
            }
        )
    return tuple(rows)


def measure(chosen: Chosen) -> Report:
    """Run them; skipped ones did not pass."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-") as name:
        report = Path(name) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-n", "0", "-p", "no:randomly"),
            *(f"--junitxml={report}", *files()),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            goal = Goal(name="gpu_tests_passed_share", value=None, goal=1, op="==")
            return Report(benchmark="tests", rows=({"note": "not over in time"},), goals=(goal,))
        print(done.stdout[-6000:], file=sys.stderr)
        cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ()
        found = [
            {
                "test": f"{case.get('classname')}::{case.get('name')}",
                "result": next((child.tag for child in case), "passed"),
                "seconds": float(case.get("time", 0)),
            }
            for case in cases
        ]
    passed = sum(each["result"] in PASSED for each in found)
    share = passed / len(found) if found else None
    goal = Goal(name="gpu_tests_passed_share", value=share, goal=1, op="==")
    return Report(benchmark="tests", rows=by_file(found), goals=(goal,))
