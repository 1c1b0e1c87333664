"""docs/safety.md promises tests; each of them exists."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def missing(page: str) -> list[str]:
    """List the tests that a page names and the repository does not have."""
    lost = []
    for path, name in NAMED.findall(page):
        file = REPOSITORY / path
        functions = (
            {
                node.name
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
            }
            if file.exists()
            else set()
        )
        if not functions or (name and name not in functions):
            lost.append(f"{path}::{name}")
    return lost


def test_every_row_of_the_safety_table_has_its_test() -> None:
    """A row whose test was renamed or deleted is a promise without a holder."""
    page = (REPOSITORY / "docs" / "safety.md").read_text()
    assert missing(page) == []
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    bare = [row for row in rows if "tests/" not in row and not row.startswith("| state ")]
    assert bare == []


@pytest.mark.parametrize(
    "row", ["`tests/hook/test_faults.py::test_gone`", "`tests/hook/nothing.py::test_x`"]
)
def test_a_lost_test_would_be_seen(row: str) -> None:
    """The sabotaged twin."""
    assert missing(row)
