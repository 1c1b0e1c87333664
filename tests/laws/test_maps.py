"""Each package's `__init__.py` maps what lies beside it: nothing is missing, nothing is gone."""

import ast
import re
from pathlib import Path

import pytest

from tests.laws.sources import REPOSITORY, ROOMS


def packages() -> list[Path]:
    """List the folders of every package below the rooms and the examples."""
    tops = (*ROOMS, "examples")
    found = (init.parent for room in tops for init in (REPOSITORY / room).rglob("__init__.py"))
    return [each for each in found if each.name != "versions"]


def inside(folder: Path) -> set[str]:
    """Name a package's modules and sub-packages as a map does."""
    modules = {each.name for each in folder.glob("*.py") if each.name != "__init__.py"}
    below = {f"{init.parent.name}/" for init in folder.glob("*/__init__.py")}
    return modules | below


def faults(text: str, there: set[str]) -> list[str]:
    """Say what a map leaves out, and what it names that is not there."""
    listed = set(re.findall(r"^ *(?:[\w.]+, )*?(\w+(?:\.py|/))(?=[ ,])", text, re.MULTILINE))
    named = set(re.findall(r"(?<![\w./])\w+(?:\.py|/)(?!\w)", text))
    missing = [f"{name} is not in the map" for name in sorted(there - named)]
    return missing + [f"{name} is gone" for name in sorted(listed - there - {"__init__.py"})]


@pytest.mark.parametrize("folder", packages(), ids=lambda each: str(each.relative_to(REPOSITORY)))
def test_a_map_names_what_is_there(folder: Path) -> None:
    """A stranger who opens a folder finds every thing in it by one line."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
    assert faults(text, inside(folder)) == []


def test_a_map_that_is_wrong_is_caught() -> None:
    """Sabotaged twins: a file that nobody listed, and one that went away."""
    text = "The map:\n    a.py  one thing\n    b/    another"
    assert faults(text, {"a.py", "b/"}) == []
    assert faults(text, {"a.py", "b/", "c.py"}) == ["c.py is not in the map"]
    assert faults(text, {"b/"}) == ["a.py is gone"]
    assert faults(text, {"a.py"}) == ["b/ is gone"]


def test_a_file_is_not_named_by_the_end_of_another_name() -> None:
    """Sabotaged twin: `spread.py` in the map does not stand for `read.py`, nor `all/` for `l/`."""
    text = "The map:\n    spread.py  one thing\n    all/  another"
    assert faults(text, {"spread.py", "all/", "read.py", "l/"}) == [
        "l/ is not in the map",
        "read.py is not in the map",
    ]
