"""docs/results.md: every goal, what was measured, and on which machine.

Invariant: the page is made from the benchmarks' own JSON and nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import machine
from benchmarks.report import format_value

HEAD = """# Measured results

Written by `make bench`; do not edit. One table per benchmark, and one row per goal. Run one of
them yourself with `python -m benchmarks.<name>`, where the rows behind each figure are printed too.
"""


def _goal_row(goal: Mapping[str, Any]) -> str:
    verdict = "yes" if goal["ok"] else "**no**"
    must = f"{goal['op']} {goal['goal']:g}"
    return f"| `{goal['name']}` | {format_value(goal['value'])} | {must} | {verdict} |"


def _section(result: Mapping[str, Any]) -> str:
    lines = [
        f"## {result['benchmark']}",
        "",
        f"Measured on {machine.in_words(result['machine'])}.",
        "",
        "| goal | measured | must be | reached |",
        "|---|---|---|---|",
        *(_goal_row(goal) for goal in result["goals"]),
    ]
    return "\n".join(lines) + "\n"


def render(results: Sequence[Mapping[str, Any]], failures: Mapping[str, str]) -> str:
    """Write the page. `failures`: benchmarks that did not run, with their last words."""
    parts = [HEAD, *(_section(result) for result in results)]
    parts += [f"## {name}\n\nDid not run: {words}\n" for name, words in failures.items()]
    if len(parts) == 1:
        parts.append("Nothing has been measured yet.\n")
    return "\n".join(parts)
