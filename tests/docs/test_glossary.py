"""The page of words names what the code names so, and no retired name comes back."""

import ast
import re

from tests.laws.sources import REPOSITORY, ROOMS

PAGE = (REPOSITORY / "docs" / "glossary.md").read_text("utf-8")
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| `([\w.]+)` in `([\w/.]+)` \|$", re.MULTILINE)

RETIRED = {
    "Bell",
    "Case",
    "Chair",
    "Courier",
    "Desk",
    "Lookout",
    "Member",
    "Settler",
    "UsualDay",
    "Worth",
    "agreed",
    "bell",
    "books",
    "caution",
    "chair",
    "courier",
    "desk",
    "duties",
    "far",
    "lookout",
    "member",
    "reckoning",
    "settling",
    "worth",
}
"""Names of classes and modules that people had to be told the meaning of (decision 40)."""


def names(text: str) -> set[str]:
    """Give the classes that a module defines."""
    return {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def wrong(page: str) -> list[str]:
    """List rows whose file or class is not there, and rows that name none."""
    found = ROW.findall(page)
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    heads = sum(line.startswith("| word") for line in rows)
    bad = [] if len(found) == len(rows) - heads else ["a row names no file"]
    for name, path in found:
        file = REPOSITORY / path
        if not file.is_file():
            bad.append(f"{path} is gone")
        elif name not in {file.name, *names(text := file.read_text("utf-8"))} and not re.search(
            rf"\b{name}\b", text
        ):
            bad.append(f"{path} has no {name}")
    return bad


def test_every_word_is_where_the_page_says() -> None:
    """A word that moves takes its row along."""
    assert len(ROW.findall(PAGE)) > 30
    assert wrong(PAGE) == []


def test_a_row_that_is_wrong_is_caught() -> None:
    """Sabotaged twins: a class that went, a file that went, a row that names nothing."""
    head = "| word | means | where |\n"
    assert wrong(f"{head}| run | x | `Runner` in `reconfig/layout.py` |") != []
    assert wrong(f"{head}| run | x | `Layout` in `reconfig/shapes.py` |") != []
    assert wrong(f"{head}| run | x | somewhere |") != []


def test_no_retired_name_comes_back() -> None:
    """Neither as a module nor as a class; agents and the actuator are processes of their own."""
    found = set()
    for room in ROOMS:
        for path in (REPOSITORY / room).rglob("*.py"):
            if path.parts[-2] != "agent":
                found |= {path.stem, path.parent.name, *names(path.read_text("utf-8"))}
    assert found & RETIRED == set()
    assert "Layout" in found
