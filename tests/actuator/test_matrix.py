"""The safety matrix in real processes: whatever vanishes, every GPU ends where it must."""

from pathlib import Path

import pytest

from benchmarks.safety.node import Node
from benchmarks.safety.rows import CASES, Case

DOCS = Path(__file__).parents[2] / "docs"
PAGE, INDEX = DOCS / "safety.md", DOCS / "held-by.md"


@pytest.mark.parametrize("case", CASES, ids=[each.name for each in CASES])
def test_every_gpu_ends_where_it_must(case: Case) -> None:
    """One row of docs/safety.md: make the state, take the part away, wait for the end."""
    with Node() as node:
        case.run(node)


@pytest.mark.parametrize("case", CASES, ids=[each.name for each in CASES])
def test_the_page_has_the_row(case: Case) -> None:
    """What is promised is what is run, and the other way round."""
    test = f"`tests/actuator/test_matrix.py::test_every_gpu_ends_where_it_must` [{case.name}] |"
    assert case.line in PAGE.read_text().splitlines()
    assert f"| {case.state} / {case.vanishes} | {test}" in INDEX.read_text().splitlines()


def test_the_page_has_no_other_row() -> None:
    """A row that nobody runs would be a promise without a holder."""
    assert INDEX.read_text().count("test_matrix.py::test_every_gpu_ends_where_it_must`") == len(
        CASES
    )
