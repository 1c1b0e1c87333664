"""docs/held-by.md names the test that holds each line of the pages that promise something."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY

NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
DOCS = Path(REPOSITORY) / "docs"
KEYS = {
    "Safety": ("safety.md", "", 2),
    "What a job may have": ("attach.md", "Will my job", 1),
    "What breaks a run's mathematics": ("convergence.md", "What breaks it", 1),
    "Checks of equivalence": ("convergence.md", "The checks", 1),
    "Threats": ("security.md", "Threats", 1),
    "Hugging Face": ("huggingface.md", "What is carried", 1),
}
"""Sections of the index: their page, the section there, and how many cells name a line."""

ENDS = {"The checks": "\n### "}
"""Where a section's table is followed by others that promise nothing."""

SENTENCES = "Sentences of other pages"

OF_TESTS = {"architecture.md", "held-by.md", "results.md"}
"""Pages about how wattmesh is made; `decisions/` lies beside them."""

TOOLS = {"tests/audit/independent.py", "tests/audit/independent_report.py"}
"""Scripts that a page tells its reader to run."""


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


def cells(text: str) -> list[list[str]]:
    """The cells of every row of the tables in a text, heads apart."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()[2:]]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]


def lines_of(page: str, begin: str, count: int) -> set[str]:
    """Name every line of a page's tables, from a heading on."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if begin:
        text = text[text.index(f"## {begin}") + 3 :].partition(ENDS.get(begin, "\n## "))[0]
    return {" / ".join(each[:count]) for each in cells(text)}


def held(index: str, section: str) -> dict[str, str]:
    """Give the tests of each line in a section of the index."""
    text = index.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return {each[0]: each[1] for each in cells(text)}


def unheld(index: str) -> list[str]:
    """List lines that no test holds, and lines of the index that no page has."""
    found = []
    for section, (page, begin, count) in KEYS.items():
        promised, known = lines_of(page, begin, count), held(index, section)
        found += sorted(promised ^ known.keys())
        found += [line for line, tests in known.items() if not NAMED.search(tests)]
    return found + unsaid(index)


def unsaid(index: str) -> list[str]:
    """List sentences of the index that are not on their page, and those that no test holds."""
    text = index.partition(f"## {SENTENCES}\n")[2].partition("\n## ")[0]
    found = []
    for page, words, tests in cells(text):
        said = " ".join((DOCS / page).read_text(encoding="utf-8").split())
        if words not in said or not NAMED.search(tests):
            found.append(f"{page}: {words}")
    return found


def naming(page: str) -> set[str]:
    """Give the tests that a page names."""
    return set(re.findall(r"tests/[\w/]+\.py", page)) - TOOLS


def test_every_line_is_held_by_a_test_that_exists() -> None:
    """A line whose test was renamed or deleted is a promise without a holder."""
    index = (DOCS / "held-by.md").read_text(encoding="utf-8")
    assert missing(index) == []
    assert unheld(index) == []


def test_pages_for_users_name_no_test() -> None:
    """They speak of the product; the index speaks of its tests."""
    pages = [each for each in DOCS.glob("*.md") if each.name not in OF_TESTS]
    assert len(pages) > 20
    assert {each.name: naming(each.read_text("utf-8")) for each in pages} == {
        each.name: set() for each in pages
    }
    assert naming("it is so (`tests/cli/test_run_report.py::test_x`)")  # the sabotaged twin


@pytest.mark.parametrize(
    "row", ["`tests/hook/launches/test_faults.py::test_gone`", "`tests/hook/nothing.py::test_x`"]
)
def test_a_lost_test_would_be_seen(row: str) -> None:
    """The sabotaged twin."""
    assert missing(row)


def test_a_line_without_a_test_and_one_without_a_page_would_be_seen() -> None:
    """The sabotaged twins: one row less, one more."""
    index = (DOCS / "held-by.md").read_text(encoding="utf-8")
    row = next(line for line in index.splitlines() if line.startswith("| LR schedulers"))
    assert unheld(index.replace(f"{row}\n", "")) == ["LR schedulers"]
    assert unheld(index.replace(row, f"{row}\n| no such thing | `tests/a.py` |")) == [
        "no such thing"
    ]
    assert unsaid(
        f"## {SENTENCES}\n\n| a | b | c |\n|---|---|---|\n| energy.md | x-x | `tests/a.py` |\n"
    )
