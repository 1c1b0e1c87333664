"""Nothing that a person can meet is missing from docs/, and what is generated is current."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import reference
from scripts.pages import cli, errors, metrics, switch
from scripts.pages.markdown import docstring
from wattmesh.controller.api.app import CALLS
from wattmesh.controller.settings.text import keys
from wattmesh.reconfig.switch import SwitchState

REPOSITORY = Path(__file__).resolve().parents[2]


def _names() -> dict[str, list[str]]:
    """Collect what a person can meet, by kind."""
    return {
        "command": [name for name, _ in cli.commands()],
        "setting": [key.path for key in keys()],
        "metric": [metric.name for metric in metrics.metrics()],
        "error": [each.__name__ for each in errors.classes()],
        "state": [str(state) for state in SwitchState],
        "call": [f"{call.method} {call.path}" for call in CALLS],
    }


def _unnamed(text: str, names: dict[str, list[str]]) -> list[str]:
    """List what `text` does not name."""
    return [
        f"{kind} {name}" for kind, each in names.items() for name in each if not _stands(name, text)
    ]


def _stands(name: str, text: str) -> bool:
    """Say whether `text` has a name as a word of its own."""
    found = re.finditer(rf"{re.escape(name)}(?![\w.]*\w)", text)
    return any(not re.match(r"[\w.]", text[at.start() - 1 : at.start()]) for at in found)


def _written() -> str:
    return "\n".join(
        path.read_text("utf-8") for path in sorted((REPOSITORY / "docs").rglob("*.md"))
    )


def test_everything_is_named() -> None:
    """Every command, setting, metric, error, switch state and call stands in docs/."""
    assert _unnamed(_written(), _names()) == []


def test_no_file_with_metrics_is_overlooked() -> None:
    """A metric that moves to another file stays in the reference."""
    served = {
        str(path.relative_to(REPOSITORY))
        for folder in ("controller", "telemetry")
        for path in (REPOSITORY / folder).rglob("*.py")
        if "MetricFamily(\n" in (text := path.read_text("utf-8")) or 'MetricFamily("' in text
    }
    read = {
        f"{package.removeprefix('wattmesh.').replace('.', '/')}/{name}"
        for package, name in metrics.SOURCES
    }
    assert served == read


@pytest.mark.parametrize("kind", ["command", "setting", "metric", "error", "state", "call"])
def test_unnamed_is_caught(kind: str) -> None:
    """Sabotaged twin: docs from which one name is struck out are found wanting."""
    name = _names()[kind][-1]
    assert _unnamed(_written().replace(name, ""), {kind: [name]}) == [f"{kind} {name}"]


def test_generated_pages_are_current() -> None:
    """`make docs` would change nothing. If this fails: run `make docs` and commit what it wrote."""
    checked = subprocess.run(
        [sys.executable, "-m", "scripts.reference", "--check"],
        cwd=REPOSITORY,
        env={**os.environ, "STATE_DIRECTORY": "/elsewhere", "COLUMNS": "40"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_stale_page_is_caught(tmp_path: Path) -> None:
    """Sabotaged twin: a page that was edited by hand, or is missing, is named."""
    made = {"a.md": "as generated", "b.md": "b", "c.md": "c"}
    (tmp_path / "a.md").write_text("as generated, and improved by hand")
    (tmp_path / "b.md").write_text("b")
    assert reference.stale(made, tmp_path) == ["a.md", "c.md"]


def test_every_state_has_a_meaning() -> None:
    """The page of switch states explains each of them and no other."""
    assert set(switch.MEANING) == set(SwitchState)


def test_undocumented_is_refused() -> None:
    """Sabotaged twin: what has no docstring cannot be put on a page."""
    with pytest.raises(ValueError, match="no docstring"):
        docstring(type("Bare", (), {}))
