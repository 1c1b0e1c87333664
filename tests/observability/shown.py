"""The shipped dashboards as Grafana would ask for them: queries with their variables filled in."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.dashboards import BOARDS
from scripts.dashboards.panels import Panel

SHIPPED = Path(__file__).parents[2] / "integrations/grafana/dashboards"
RATE_S = 12
"""`$__rate_interval` here: Grafana takes four scrapes at least, and ours come every second."""

AGO = "offset 2s"
"""For `offset 6h`: nothing here is that old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQuery:
    """One query of one panel of a shipped file."""

    board: str
    panel: dict[str, Any]
    expr: str
    legend: str

    @property
    def title(self) -> str:
        """Title of its panel."""
        return str(self.panel["title"])


def boards() -> dict[str, dict[str, Any]]:
    """Read every shipped dashboard."""
    return {path.name: json.loads(path.read_text("utf-8")) for path in SHIPPED.glob("*.json")}


def panels(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the panels of a dashboard without its headings."""
    return [each for each in board["panels"] if each["type"] != "row"]


def queries() -> Iterator[ShownQuery]:
    """Give every query of every panel."""
    for name, board in boards().items():
        for panel in panels(board):
            for target in panel["targets"]:
                yield ShownQuery(
                    board=name, panel=panel, expr=target["expr"], legend=target["legendFormat"]
                )


def drawn() -> dict[tuple[str, str], Panel]:
    """Give each panel as it was written in Python, by file and title."""
    return {(name, each.title): each for name, board in BOARDS.items() for each in board.panels()}


def filled(expr: str, chosen: Mapping[str, str]) -> str:
    """Put in what was chosen, as Grafana does: a pattern's characters and quotes are escaped.

    Args:
        expr: of a panel.
        chosen: value of each variable; `.*` where all are chosen.
    """
    expr = expr.replace("$__rate_interval", f"{RATE_S}s").replace("offset 6h", AGO)

    def value(found: re.Match[str]) -> str:
        operator, name = found[1], found[2]
        raw = chosen[name]
        if operator == "=":
            escaped = raw.replace("\\", "\\\\").replace('"', '\\"')
        elif raw == ".*":
            escaped = raw
        else:
            escaped = re.escape(raw).replace("\\", "\\\\").replace('"', '\\"')
        return f'{operator}"{escaped}"'

    return re.sub(r'(=~|=)"\$(\w+)"', value, expr)


def variables(board: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give the variables that are asked of Prometheus, by name."""
    return {each["name"]: each for each in board["templating"]["list"] if each["type"] == "query"}


def asked(variable: Mapping[str, Any]) -> tuple[str, str]:
    """Split `label_values(series, label)`."""
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert found is not None, variable["query"]
    return found[1], found[2]
