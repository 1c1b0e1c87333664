"""The step log: survives writers that die, and counts a repeated step once."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.step_log import StepLog, StepRow, read

ROW = StepRow(
    step=1, tokens=64, loss=5.5, layout="dp2 tp2", gpus=4, monotonic_s=10.5, elapsed_s=0.25
)


def test_rows_read_back_in_order_of_steps(tmp_path: Path) -> None:
    """What two incarnations appended is one history; a step done again counts as it was last."""
    path = tmp_path / "steps.jsonl"
    for losses in ({1: 5.0, 2: 4.0, 3: 3.0}, {2: 4.5, 3: 3.5, 4: 2.5}):
        log = StepLog(path)
        for step, loss in losses.items():
            log.append(replace(ROW, step=step, loss=loss))
        log.close()
    assert [(row.step, row.loss) for row in read(path)] == [(1, 5.0), (2, 4.5), (3, 3.5), (4, 2.5)]


def test_a_line_cut_short_costs_that_step_only(tmp_path: Path) -> None:
    """A writer killed in mid-line takes neither the line before nor the next one with it."""
    path = tmp_path / "steps.jsonl"
    first = StepLog(path)
    first.append(ROW)
    first.append(replace(ROW, step=2))
    first.close()
    path.write_bytes(path.read_bytes()[:-20])
    second = StepLog(path)
    second.append(replace(ROW, step=3))
    second.close()
    assert [row.step for row in read(path)] == [1, 3]


@given(st.binary(max_size=300))
def test_any_line_is_read_or_passed_over(line: bytes) -> None:
    """Garbage never raises."""
    assert isinstance(StepRow.from_line(line), StepRow | None)


@pytest.mark.parametrize("line", [b"[]", b"null", b'{"step": 1}', b'{"step": 1e999}', b"\xff"])
def test_lines_of_another_kind_are_passed_over(line: bytes) -> None:
    """JSON that is no step row is no row."""
    assert StepRow.from_line(line) is None


def test_a_log_that_cannot_be_opened_is_an_input_mistake(tmp_path: Path) -> None:
    """Both directions name the path."""
    with pytest.raises(InputInvalid, match="missing"):
        StepLog(tmp_path / "missing" / "steps.jsonl")
    with pytest.raises(InputInvalid, match="missing"):
        read(tmp_path / "missing")
    StepLog(None).append(ROW)
