"""Run every benchmark, each in a process of its own; write docs/results.md and README's line on it.

    python -m benchmarks.run_all ["NAME OPTIONS" ...]

With names only those are run, and their sections of the page made anew.

Invariant: one that fails does not hide the others, and fails the whole at the end.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results_page import render, said, updated
from wattmesh.durable import write_text

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE, README = REPOSITORY / "docs" / "results.md", REPOSITORY / "README.md"
VARIANTS = {
    "checkpoint": ("--load",),
    "equivalence": ("--part job-types", "--part bottleneck"),
    "forecast": ("--data ../shared/data/weather",),
    "switch": ("--part bytes", "--part hosts", "--part soak"),
}
"""Benchmarks that measure something else with an option; run with it as well."""

CALLS_RUN = re.compile(r"^    sys\.exit\(\s*(report\.)?run\(", re.MULTILINE)


def names() -> list[str]:
    """List the modules that are benchmarks: those that end by calling the shared `run`."""
    root = REPOSITORY / "benchmarks"
    modules = {path.stem: path for path in root.glob("*.py")}
    modules |= {path.parent.name: path for path in root.glob("*/__main__.py")}
    return sorted(name for name in modules if CALLS_RUN.search(modules[name].read_text("utf-8")))


def commands() -> list[str]:
    """Every benchmark as it is called: its name, and options where there are some."""
    return [
        f"{name} {option}".strip() for name in names() for option in ("", *VARIANTS.get(name, ()))
    ]


def result_file(command: str) -> Path:
    """Return the file that the JSON of a benchmark is kept in."""
    return RESULTS / (re.sub(r"\W+", "-", command) + ".json")


def run_one(command: str) -> tuple[dict[str, Any] | None, str]:
    """Run one benchmark: its JSON, or None and the last line it wrote to stderr."""
    name, *options = command.split()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options, "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    result: dict[str, Any] = json.loads(done.stdout)
    return {**result, "benchmark": command}, ""


def main(chosen: Sequence[str] = ()) -> int:
    """Run all, or those chosen; give 0 when every one of them ran."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for command in chosen or commands():
        print(f"benchmark {command} ...", flush=True)
        result, words = run_one(command)
        if result is None:
            failures[command] = words
            print(f"  did not run: {words}", file=sys.stderr)
            continue
        write_text(result_file(command), json.dumps(result, indent=2) + "\n")
        results.append(result)
        missed = [goal["name"] for goal in result["goals"] if not goal["ok"]]
        print(f"  {len(result['goals'])} goals, missed: {', '.join(missed) or 'none'}")
    page = PAGE.read_text("utf-8") if chosen else render(results, failures)
    for result in results if chosen else ():
        page = updated(page, result)
    write_text(PAGE, page)
    write_text(README, said(README.read_text("utf-8"), page))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
