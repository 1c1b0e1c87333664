"""A day without trouble leaves few lines: the whole of it is `python -m benchmarks.quiet_day`."""

from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.quiet_day.__main__ import Day, counted
from wattmesh.controller.cycle import cycle


def test_quiet_hours_leave_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs, one node: a switch is three lines by run and points, an hour without one is one.

    The sabotaged twin tells what it decided at every cycle.
    """
    with counted() as lines:
        day = Day(tmp_path)
        day.live(0.25, step_s=60.0)
        assert [each.switches for each in day.runs] == [1, 1]
        told = [text for (_, text), count in lines.counts.items() for _ in range(count)]
        assert len([text for text in told if "switch" in text]) <= 2 * 3, told
        before = lines.counts.total()
        day.live(0.6, step_s=120.0)
        quiet = lines.counts.total() - before
        monkeypatch.setattr(cycle, "TOLD_AGAIN", timedelta(0))
        day.live(0.2, step_s=120.0)
        day.parts.stop()
    assert quiet <= 2, lines.counts
    assert lines.counts.total() - before - quiet >= 6
