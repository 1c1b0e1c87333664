"""`make gpu`: its page is its JSON, it says when there is no GPU, and its arithmetic is right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import page
from benchmarks.gpu.__main__ import MEASURED, PAGE, PARTS, merged
from benchmarks.gpu.marked import by_file, files
from benchmarks.gpu.sensor import Look, delay_ms, fineness, integral_j, moves, power_of
from benchmarks.gpu.switch import difference, left_share, took
from benchmarks.gpu.switch_job import Seen
from wattmesh.reconfig.equivalence.script import Turn
from wattmesh.reconfig.layout import Layout

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_page_is_made_from_the_json() -> None:
    """A figure changed by hand, in either of them, is seen."""
    measured = json.loads(MEASURED.read_text("utf-8"))
    assert page.render(measured) == PAGE.read_text("utf-8"), "`python -m benchmarks.gpu --page`"
    measured["parts"][0]["goals"][0]["value"] = None
    assert page.render(measured) != PAGE.read_text("utf-8")


def test_a_figure_that_was_not_measured_is_not_zero() -> None:
    """Null is told as such, and a part that never ran is named."""
    measured = json.loads(MEASURED.read_text("utf-8"))
    part = next(each for each in measured["parts"] if each["benchmark"] == "memory")
    part["rows"] = [{"what": "a", "gb_per_s": None}, {"what": "b", "gb_per_s": 2.0}]
    told = page.render({"benchmark": "gpu", "parts": [part]})
    assert "| a | not measured |" in told
    assert "Not measured yet: tests, sensor, train, compiled, switch, switch_more." in told


def test_without_a_gpu_one_sentence_says_so() -> None:
    """On the real command line; nothing is written, and the status is 1."""
    before = MEASURED.read_bytes(), PAGE.read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        cwd=REPOSITORY,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("No GPU was measured: torch ")
    assert len(done.stderr.splitlines()) == 1
    assert (MEASURED.read_bytes(), PAGE.read_bytes()) == before


def test_a_part_measured_again_leaves_the_others() -> None:
    """Parts keep the order of the list, whichever was measured last."""
    old = [{"benchmark": name, "n": 1} for name in ("switch", "sensor")]
    found = merged({"benchmark": "gpu", "parts": old}, {"benchmark": "memory", "n": 2})
    assert [each["benchmark"] for each in found["parts"]] == ["sensor", "memory", "switch"]
    again = merged(found, {"benchmark": "sensor", "n": 3})
    assert [each["n"] for each in again["parts"]] == [3, 2, 1]
    assert set(PARTS) == set(page.ABOUT)


def test_files_with_marked_tests_are_found_and_counted() -> None:
    """A skipped or failed test did not pass, and is named."""
    assert str(REPOSITORY / "tests" / "telemetry" / "sources" / "test_real_gpu.py") in files()
    found = [
        {"test": "a::one", "result": "passed", "seconds": 1.0},
        {"test": "a::two", "result": "skipped", "seconds": 0.5},
        {"test": "b::one", "result": "failure", "seconds": 2.0},
    ]
    rows = by_file(found)
    assert [(row["file"], row["tests"], row["passed"]) for row in rows] == [
        ("a", 2, 1),
        ("b", 1, 0),
    ]
    assert [row["not_passed"] for row in rows] == ["two", "one"]


def test_a_signal_s_moves_and_steps() -> None:
    """A counter in steps of 30 and 45 mJ, every 100 ms; a silent one has moved by nothing known."""
    looks = [Look(at / 100, 0.001, 30 * (at // 10) + 15 * (at >= 40)) for at in range(60)]
    assert [step for _, step in moves(looks)] == [30, 30, 30, 45, 30]
    row = fineness("counter (field 191)", "idle", looks)
    assert row["moves_every_ms"] == pytest.approx(100)
    assert (row["step"], row["steps_are_multiples_of"]) == (30, 15)
    assert power_of("counter (field 191)", looks)[0][1] == pytest.approx(0.3)
    silent = fineness("counter (field 191)", "idle", [Look(0.1, 0.001, None)] * 3)
    assert (silent["step"], silent["moves_every_ms"]) == (None, None)


def test_a_delay_is_half_of_the_way() -> None:
    """From 100 W to 500 W, 80 ms late; where nothing changes there is none."""
    series = [(at / 100, 500.0 if at >= 208 else 100.0) for at in range(420)]
    assert delay_ms(series, 2.0) == pytest.approx(80)
    assert delay_ms([(at / 100, 100.0) for at in range(420)], 2.0) is None


def test_an_integral_needs_the_whole_window() -> None:
    """A ramp from 0 to 10 W over 10 s is 50 J; beyond what was seen nothing is known."""
    ramp = [(float(at), float(at)) for at in range(11)]
    assert integral_j(ramp, 0.0, 10.0) == pytest.approx(50)
    assert integral_j(ramp, 2.5, 3.5) == pytest.approx(3)
    assert integral_j(ramp, 2.5, 10.5) is None


def test_seconds_and_memory_of_switches() -> None:
    """From the first that leaves to the last that has done a step; parked ranks have no say."""
    lead = Seen(left_s=[1.0, 5.0], began_s=[2.0, 6.5], before=[100, 200], built_on=[0, 3, 20])
    other = Seen(left_s=[0.9, 5.1], began_s=[2.2, 6.4])
    parked = Seen(left_s=[0.1], began_s=[9.0])
    turns = [Turn(step=4, layout=Layout()), Turn(step=8, layout=Layout())]
    assert took([lead, other, parked], turns) == pytest.approx([1.3, 1.5])
    assert left_share(lead) == pytest.approx(0.1)
    assert left_share(Seen()) is None
    assert difference([2.0, 4.0], [2.0, 4.4]) == pytest.approx(0.1)
    assert difference([2.0], [2.0, 4.4]) is None
