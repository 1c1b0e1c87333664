"""One step timed on a cluster corrects the predictions of its neighbours."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.parallelism.rows import RIGHT, Row, row
from wattmesh.controller.cli.main import main
from wattmesh.controller.cost_model import csv_files, fitted
from wattmesh.errors import InputInvalid

MINE = row(framework="a trainer of our own", model="our-13b", gpu="A100-80GB-SXM")
STEP = MINE | {"step_time_s": "9"}
NEAR, FAR = MINE | {"micro_batch": "2"}, RIGHT


def table(path: Path, *rows: Row) -> Path:
    """Write rows that have the same columns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def predicted(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Predict the three rows by the command."""
    asked = table(folder / "asked.csv", MINE, NEAR, FAR)
    out = folder / "out.csv"
    assert main(["configs", "predict", "--csv", str(asked), "--out", str(out), *words]) == 0
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def width(found: dict[str, Any]) -> float:
    """How many times the upper end is the lower one."""
    return float(found["pred_high"]) / float(found["pred_low"])


def test_a_measured_step_improves_its_neighbours(tmp_path: Path) -> None:
    """A cluster that is half as fast as predicted: its other layouts follow, and are surer."""
    before = predicted(tmp_path)
    slow = 2 * float(before[0]["pred_step_time_s"])
    measured = table(tmp_path / "measured.csv", MINE | {"step_time_s": f"{slow}"})
    after = predicted(tmp_path, "--measured", str(measured))
    moved = [
        float(now["pred_step_time_s"]) / float(then["pred_step_time_s"])
        for now, then in zip(after, before, strict=True)
    ]
    assert moved[0] > 1.3, moved
    assert 1.2 < moved[1] <= moved[0], moved
    assert moved[2] == pytest.approx(1.0, abs=0.1), moved
    assert width(after[1]) < 0.95 * width(before[1])
    assert width(after[2]) <= width(before[2]) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((MINE,), "no row states step_time_s"),
        ((MINE | {"step_time_s": "2", "layers": ""},), "layers is missing"),
        ((STEP, STEP | {"step_time_s": "-2"}), "row 2: step_time_s must be a number above 0"),
        ((STEP, STEP | {"step_time_s": "inf"}), "row 2: step_time_s must be a number above 0"),
        ((STEP, STEP | {"step_time_s": "fast"}), "not 'fast'"),
        ((STEP, STEP | {"step_time_s": "0"}), "row 2: step_time_s must be a number above 0"),
        (
            (STEP, MINE | {"step_time_s": ""}, STEP | {"step_time_s": "9000"}),
            "row 3: a step of 9e+03",
        ),
        ((STEP, STEP | {"step_time_s": "0.009"}), "step_time_s is in seconds"),
        (({**STEP, "tokens_per_s_per_gpu": "-1"},), "tokens_per_s_per_gpu must be a number"),
        (({**STEP, "tokens_per_s_per_gpu": "1e6"},), "contradict each other by a factor of"),
    ],
)
def test_a_table_without_a_usable_step_is_refused(
    tmp_path: Path, rows: tuple[Row, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, and nothing is written."""
    asked = table(tmp_path / "asked.csv", MINE)
    measured = table(tmp_path / "measured.csv", *rows)
    out = tmp_path / "out.csv"
    told = ["configs", "predict", "--csv", str(asked), "--out", str(out)]
    assert main([*told, "--measured", str(measured), "--json"]) != 0
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_the_screen_says_how_many_steps_corrected_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON and as a sentence."""
    asked = table(tmp_path / "asked.csv", MINE)
    measured = table(tmp_path / "m.csv", MINE | {"step_time_s": "9"}, NEAR | {"step_time_s": ""})
    told = ["configs", "predict", "--csv", str(asked), "--out", str(tmp_path / "out.csv")]
    assert main([*told, "--measured", str(measured), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == 1
    assert main([*told, "--measured", str(measured)]) == 0
    assert "corrected by 1 measured step" in capsys.readouterr().out


def test_a_time_that_is_not_known_is_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN beside a stated time, as pandas writes it; a row with NaN alone corrects nothing."""
    asked = table(tmp_path / "asked.csv", MINE)
    known = MINE | {"step_time_s": "9", "tokens_per_s_per_gpu": "NaN"}
    nothing = NEAR | {"step_time_s": "NaN", "tokens_per_s_per_gpu": "NaN"}
    measured = table(tmp_path / "m.csv", known, nothing)
    told = ["configs", "predict", "--csv", str(asked), "--out", str(tmp_path / "out.csv")]
    assert main([*told, "--measured", str(measured), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == 1


def test_more_measured_steps_than_can_be_taken_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sentence, before any work."""
    monkeypatch.setattr(csv_files, "MOST_MEASURED", 2)
    path = table(tmp_path / "m.csv", *[MINE | {"step_time_s": "9"}] * 3)
    with pytest.raises(InputInvalid, match="has 3 measured steps; at most 2 are taken"):
        csv_files.measured_table(path, fitted.shipped())
