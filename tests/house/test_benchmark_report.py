"""Benchmarks print what the design promises, and say so when a figure was not measured."""

import argparse
import ast
import json
import math
from typing import Any

import pytest

from benchmarks import machine, report, results_page, run_all
from benchmarks.report import Goal, Op, Report


def _sample(_chosen: argparse.Namespace) -> Report:
    """Measure nothing, quickly."""
    return Report(
        benchmark="sample",
        rows=({"case": "one", "rss_mib": 61.23456}, {"case": "two", "p95_s": None}),
        goals=(
            Goal(name="rss_mib", value=61.2, goal=128, op="<="),
            Goal(name="start_s", value=None, goal=1, op="<="),
        ),
    )


def _printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert report.run(_sample, arguments=["--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


@pytest.mark.parametrize(
    ("value", "op", "ok"),
    [
        (1.0, "<=", True),
        (1.1, "<=", False),
        (1.0, ">=", True),
        (0.9, ">=", False),
        (1.0, "==", True),
        (1.1, "==", False),
        (None, "<=", False),
        (math.nan, ">=", False),
    ],
)
def test_goal(value: float | None, op: Op, ok: bool) -> None:
    """A goal is reached by comparing with its own operator; unmeasured never reaches it."""
    assert Goal(name="x", value=value, goal=1.0, op=op).ok is ok


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one object with the published keys."""
    printed = _printed(capsys)
    assert list(printed) == ["benchmark", "machine", "rows", "goals"]
    assert printed["machine"]["cores"] >= 1
    assert printed["goals"][0] == {
        "name": "rss_mib",
        "value": 61.2,
        "goal": 128,
        "op": "<=",
        "ok": True,
    }
    assert printed["goals"][1]["value"] is None


def test_missed_goal_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The table for people names a missed goal, and the exit status stays 0."""
    assert report.run(_sample, arguments=[]) == 0
    printed = capsys.readouterr().out
    assert "start_s  not measured <= 1  MISSED" in printed
    assert "rss_mib  61.2 <= 128  ok" in printed


def test_results_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The page names machine, goals and verdicts, and the benchmarks that did not run."""
    page = results_page.render([_printed(capsys)], {"broken": "no such file"})
    assert "| `rss_mib` | 61.2 | <= 128 | yes |" in page
    assert "| `start_s` | not measured | <= 1 | **no** |" in page
    assert "## broken\n\nDid not run: no such file" in page


def test_a_section_is_made_anew_in_its_place() -> None:
    """Its neighbours stay as they are, also one whose name begins alike."""

    def result(name: str, value: float) -> dict[str, Any]:
        goal = {"name": "g", "value": value, "op": "<=", "goal": 1.0, "ok": value <= 1}
        return {"benchmark": name, "machine": machine.describe(), "goals": [goal]}

    before = [result("a", 1.0), result("a --load", 0.5), result("b", 2.0)]
    page = results_page.render(before, {})
    again = results_page.updated(page, result("a", 0.25))
    assert again == results_page.render([result("a", 0.25), *before[1:]], {})
    longer = results_page.updated(page, result("c", 0.125))
    assert longer == results_page.render([*before, result("c", 0.125)], {})


def test_helpers_are_not_benchmarks() -> None:
    """`make bench` runs benchmarks, and not the modules that help them."""
    assert not {"report", "machine", "run_all", "results_page", "usage"} & set(run_all.names())


def test_a_variant_is_run_as_well() -> None:
    """Where an option measures something else, both are run, the plain one first."""
    checkpoint = [each for each in run_all.commands() if each.split()[0] == "checkpoint"]
    assert checkpoint == ["checkpoint", "checkpoint --load"]
    assert "checkpoint_load" not in run_all.names()
    assert set(run_all.VARIANTS) <= set(run_all.names())


def test_every_result_has_a_file_of_its_own() -> None:
    """Options may hold a path."""
    files = [run_all.result_file(each) for each in run_all.commands()]
    assert len(set(files)) == len(files)
    assert {each.parent for each in files} == {run_all.RESULTS}


def test_no_spawned_process_is_asked_for_a_function_of_main() -> None:
    """A package's `__main__` is not imported there: such a benchmark could not run at all."""

    def asked(source: str) -> set[str]:
        tree = ast.parse(source if "ProcessPool" in source else "")
        own = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
        given = {
            call.args[0].id
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            if call.func.attr in {"map", "submit"} and call.args
            if isinstance(call.args[0], ast.Name)
        }
        return own & given

    mains = (run_all.REPOSITORY / "benchmarks").glob("*/__main__.py")
    assert [path for path in mains if asked(path.read_text("utf-8"))] == []
    assert asked("def work(): ...\nwith ProcessPoolExecutor() as pool: pool.map(work, [1])") == {
        "work"
    }


def test_readme_names_every_goal_that_was_missed() -> None:
    """README's line is made from the page; a goal left out of it, or a kinder figure, is seen."""
    page, readme = run_all.PAGE.read_text("utf-8"), run_all.README.read_text("utf-8")
    assert results_page.said(readme, page) == readme, "run `make bench`, or write the line anew"
    line = results_page.missed_line(page)
    assert line.count("(must be ") == page.count("| **no** |")
    for spoilt in (readme.replace("(must be", "(should be", 1), readme.replace(line, line[:-9])):
        assert results_page.said(spoilt, page) == readme != spoilt


def test_the_line_says_what_did_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    """An unmeasured goal is missed, and a benchmark that did not run is named."""
    page = results_page.render([_printed(capsys)], {"broken --part x": "no such file"})
    line = results_page.missed_line(page)
    assert "missed on the [results page](docs/results.md): `start_s` not measured (must" in line
    assert line.endswith("Not run: broken --part x.")
    assert results_page.missed_line("# Measured results").endswith(": none.")
    with pytest.raises(ValueError, match="0 lines"):
        results_page.said("no such line", page)
