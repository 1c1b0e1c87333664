"""What every benchmark hands in, and the two ways it is printed.

    def measure(chosen: argparse.Namespace) -> Report:
        rss_mib = ...
        goal = Goal(name="rss_mib", value=rss_mib, goal=128, op="<=")
        row = {"case": "idle", "rss_mib": rss_mib}
        return Report(benchmark="daemon", rows=(row,), goals=(goal,))

    if __name__ == "__main__":
        sys.exit(run(measure, {"minutes": 10.0}))

`--json` prints one object: {"benchmark", "machine", "rows", "goals": [{"name", "value", "goal",
"op", "ok"}]}. Invariant: the exit status says whether it ran, never whether a goal was met; a
figure that was not measured has the value null and is not ok.
"""

import argparse
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks import machine

Op = Literal["<=", ">=", "=="]
_COMPARE: Mapping[Op, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure beside what it must reach. `value` None: it could not be measured here."""

    name: str
    value: float | None
    goal: float
    op: Op

    @property
    def ok(self) -> bool:
        """Whether the figure reaches its goal; an unmeasured one (None, NaN) never does."""
        if self.value is None or math.isnan(self.value):
            return False
        return _COMPARE[self.op](self.value, self.goal)

    def as_json(self) -> dict[str, Any]:
        """Give the figure as the published object."""
        value = None if self.value is None or math.isnan(self.value) else self.value
        return {
            "name": self.name,
            "value": value,
            "goal": self.goal,
            "op": self.op,
            "ok": self.ok,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one benchmark measured.

    Attributes:
        rows: the evidence, one flat mapping each: what was run, on what, tuned on what.
        goals: the figures of the design's table, by the names given there.
    """

    benchmark: str
    rows: tuple[Mapping[str, Any], ...]
    goals: tuple[Goal, ...]

    def as_json(self, where: Mapping[str, Any]) -> dict[str, Any]:
        """Give the whole report as the published object; `where`: the machine."""
        return {
            "benchmark": self.benchmark,
            "machine": dict(where),
            "rows": [dict(row) for row in self.rows],
            "goals": [goal.as_json() for goal in self.goals],
        }


def format_value(value: Any) -> str:
    """Write one cell: four significant digits are all that a benchmark is good for."""
    if value is None:
        return "not measured"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lay out rows in columns, headed by every key that occurs, in order of appearance."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[format_value(row.get(key, "")) for key in keys] for row in rows]
    widths = [
        max(len(line[column]) for line in [keys, *cells]) if keys else 0
        for column in range(len(keys))
    ]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [keys, *cells]
    ]


def _as_text(report: Report, where: dict[str, Any]) -> str:
    lines = [f"{report.benchmark}, measured on {machine.in_words(where)}", ""]
    lines += table(report.rows) if report.rows else ["no rows"]
    lines.append("")
    for goal in report.goals:
        verdict = "ok" if goal.ok else "MISSED"
        lines.append(f"{goal.name}  {format_value(goal.value)} {goal.op} {goal.goal:g}  {verdict}")
    return "\n".join(lines)


def run(
    measure: Callable[[argparse.Namespace], Report],
    options: Mapping[str, Any] | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Measure, print for a person or as JSON, and give the exit status: 0, it ran.

    Args:
        measure: takes what was chosen on the command line.
        options: its own, each a name ("minutes") and its default; False for a flag.
        arguments: instead of the command line.
    """
    parser = argparse.ArgumentParser(description=measure.__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name, default in (options or {}).items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    chosen = parser.parse_args(arguments)
    where = machine.describe()
    report = measure(chosen)
    print(json.dumps(report.as_json(where)) if chosen.json else _as_text(report, where))
    return 0
