"""`wattmesh status` at 3 a.m.: one screen, whatever is wrong and however many runs there are."""

import re

import pytest

from tests.cli import facts
from tests.cli.screens.test_screens import plain
from wattmesh.controller.cli.runs.one_screen import height
from wattmesh.controller.cli.runs.status_screen import screen

RED = (
    "run-{0} has not been heard for {1} min (last at step {0}): see whether the job still runs; "
    "if it does, its log says why it cannot reach the daemon; if not, `wattmesh retire run-{0}` "
    "ends it."
)


def night(runs: int, red: int) -> dict[str, object]:
    """A site on which the newest runs are in trouble."""
    listed = tuple(
        facts.run(run=f"{number:08d}-0000", name=f"run-{number}", sentence=f"Reason {number}.")
        for number in range(runs)
    )
    troubles = tuple(RED.format(runs - 1 - number, 40 + number) for number in range(red))
    return facts.status(runs=listed, trouble=troubles)


@pytest.mark.parametrize("runs", [1, 12, 60])
@pytest.mark.parametrize("red", [0, 1, 5, 30])
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (200, 60)])
def test_it_fits_and_what_is_wrong_comes_first(
    runs: int, red: int, columns: int, rows: int
) -> None:
    """What, since when, who and what to type stand whole below the head; nothing goes uncounted."""
    view = night(runs, min(red, runs))
    lines = screen(view, columns, rows)
    assert height(lines, columns) < rows, plain(lines)
    text = plain(lines)
    if red:
        first = str(lines[1])
        assert first.startswith(f"! run-{runs - 1} has not been heard for 40 min")
        assert f"`wattmesh retire run-{runs - 1}` ends it" in first
        assert re.search(rf"(?m)^run-{runs - 1} ", text), "its row is there"
    shown = len(re.findall(r"(?m)^run-\d+ ", text))
    told = re.search(r"and (\d+) more runs?:", text)
    assert shown + (int(told[1]) if told else 0) == runs
    reds = len(re.findall(r"(?m)^! ", text))
    more = re.search(r"and (\d+) more red lines?:", text)
    assert reds + (int(more[1]) if more else 0) == min(red, runs)


def test_a_pipe_gets_everything() -> None:
    """And so does a terminal that is high enough; the twin that cuts is told apart."""
    view = night(60, 30)
    whole = screen(view, 120, None)
    assert screen(view, 120, 10_000) == whole
    assert height(whole, 120) > 100
    assert "shows all" not in plain(whole)
    assert plain(screen(view, 120, 40)).count("shows all") >= 2
