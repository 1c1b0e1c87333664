"""docs/huggingface.md: a script without us, three statements, and the same losses."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY, block, patched
from tests.docs.test_held import missing
from tests.hook.harness import Zygote
from tests.huggingface.documented import HEADING, PAGE, script

PATIENCE_S = 150.0


def losses(ranks: Zygote, folder: Path, job: str) -> list[list[float]]:
    """What each of two ranks printed."""
    folder.mkdir()
    environment = {"REAL": str(folder / "run")}
    launch = ranks.start(2, environment, folder, f"tests.huggingface.documented:{job}")
    status = ranks.wait(launch, PATIENCE_S)
    logs = [path.read_text() for path in sorted(folder.glob("rank-*.log"))]
    assert status == 0, logs
    return [[float(found) for found in re.findall(r"^loss (\S+)$", log, re.M)] for log in logs]


def test_the_script_with_the_lines_trains_what_it_trains_without(
    ranks: Zygote, tmp_path: Path
) -> None:
    """On two ranks: the mean of what ranks print alone is what each prints now."""
    alone = [
        sum(each) / 2 for each in zip(*losses(ranks, tmp_path / "alone", "plain"), strict=True)
    ]
    first, second = losses(ranks, tmp_path / "attached", "attached")
    assert len(alone) == 4
    assert first == second == pytest.approx(alone, rel=1e-6)
    assert first[0] != pytest.approx(first[1], rel=1e-6)  # each step has data of its own


def test_three_statements_are_added() -> None:
    """However many lines the longest of them is written in."""
    before = {ast.unparse(node) for node in _statements(block(PAGE, HEADING))}
    added = [node for node in _statements(script()) if ast.unparse(node) not in before]
    names = [type(node).__name__ for node in added if not isinstance(node, ast.FunctionDef)]
    assert names == ["ImportFrom", "Assign", "For"]


def _statements(text: str) -> list[ast.stmt]:
    tree = ast.parse(text)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return sorted(found, key=lambda node: node.lineno)


def test_a_diff_that_no_longer_fits_its_script_would_be_seen() -> None:
    """The sabotaged twin: a line that the script does not have."""
    diff = block(PAGE, HEADING, 2).replace("fully_shard(model)", "fully_shard(net)")
    with pytest.raises(AssertionError, match="net"):
        patched(block(PAGE, HEADING), diff)


def test_each_line_of_the_table_names_tests_that_are_there() -> None:
    """And has one of the answers."""
    page = (REPOSITORY / PAGE).read_text("utf-8")
    assert missing(page) == []
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    assert all(len(row) == 3 and row[1] in {"works", "refused"} for row in rows)
    assert missing("`tests/huggingface/test_moved.py::test_nothing`") != []
