"""The page of words names what the code names so, and a class's name has one meaning.

Nor does a retired name come back.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable

from tests.laws.sources import REPOSITORY, ROOMS, Module, modules, parse

PAGE = (REPOSITORY / "docs" / "glossary.md").read_text("utf-8")
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| `([\w.]+)` in `([\w/.]+)` \|$", re.MULTILINE)

RETIRED = {
    "Asked",
    "Bell",
    "Case",
    "Chair",
    "Courier",
    "Desk",
    "Found",
    "Known",
    "Look",
    "Lookout",
    "Member",
    "Seen",
    "Settler",
    "Standing",
    "Story",
    "Told",
    "UsualDay",
    "Wanted",
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
    "look",
    "lookout",
    "member",
    "reckoning",
    "settling",
    "story",
    "words",
    "worth",
}
"""Names of classes and modules that people had to be told the meaning of (decision 40)."""


def names(text: str) -> set[str]:
    """Give the classes that a module defines."""
    return {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def shared(sources: Iterable[Module]) -> dict[str, list[str]]:
    """Give the public classes of two modules or more, with the modules."""
    where = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(source.name)
    return {name: places for name, places in where.items() if len(places) > 1}


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
    """Neither as a class nor as a module."""
    found = set()
    for room in ROOMS:
        for path in (REPOSITORY / room).rglob("*.py"):
            found |= {path.parent.name, path.stem, *names(path.read_text("utf-8"))}
    assert found & RETIRED == set()
    assert "Layout" in found


def test_a_class_s_name_has_one_meaning() -> None:
    """A second public class of a name wants another one; a private one is its module's own."""
    assert shared(modules().values()) == {}
    once = [parse("a", "class Plan: ..."), parse("b", "class _Plan: ..."), parse("c", "Plan = 1")]
    assert shared(once) == {}
    assert shared([*once, parse("d", "class Plan: ...")]) == {"Plan": ["a", "d"]}
