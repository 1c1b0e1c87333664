"""docs/results.md: every goal, what was measured, and on which machine; README's line about it.

Invariant: the page is made from the benchmarks' own JSON and nothing else, and the line in README,
which names every goal that was missed, from the page and nothing else.
"""

import re
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


def updated(page: str, result: Mapping[str, Any]) -> str:
    """Give the page with the section of one result in place of its earlier one, or at the end."""
    section = _section(result)
    title = re.escape(section.partition("\n")[0])
    changed, count = re.subn(
        rf"^{title}\n.*?(?=\n^## |\Z)", lambda _: section, page, count=1, flags=re.M | re.S
    )
    return changed if count else f"{page}\n{section}"


_MISSED = re.compile(
    r"^\| `(?P<name>\w+)` \| (?P<value>.+) \| (?P<must>.+) \| \*\*no\*\* \|$", re.MULTILINE
)
_DID_NOT_RUN = re.compile(r"^## (?P<name>.+)\n\nDid not run: ", re.MULTILINE)
_LINE = re.compile(r"^Goals missed .*$", re.MULTILINE)


def missed_line(page: str) -> str:
    """Say in one line which goals the page says were missed, and what did not run."""
    goals = [
        f"`{each['name']}` {each['value']} (must be {each['must']})"
        for each in _MISSED.finditer(page)
    ]
    idle = [each["name"] for each in _DID_NOT_RUN.finditer(page)]
    told = f"Goals missed on the [results page](docs/results.md): {', '.join(goals) or 'none'}."
    return f"{told} Not run: {', '.join(idle)}." if idle else told


def said(readme: str, page: str) -> str:
    """Give README with its line about missed goals made anew.

    Raises:
        ValueError: it has no such line to replace, or more than one.
    """
    changed, count = _LINE.subn(lambda _: missed_line(page), readme)
    if count != 1:
        raise ValueError(f"README has {count} lines that begin with `Goals missed`; one is needed")
    return changed
