"""`wattmesh configs predict`, typed: what it says, writes and ends with."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parallelism.rows import RIGHT, Row, row
from wattmesh.controller.cli.main import main
from wattmesh.controller.cost_model.csv_files import ADDED

ROWS = [RIGHT, row(layers=""), row(layers=""), row(gpu="abacus"), row(tp=1)]


def table(folder: Path, rows: list[Row]) -> Path:
    """Write a table."""
    path = folder / "in.csv"
    with path.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def read(path: Path) -> list[dict[str, str]]:
    """Read what came out."""
    with path.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened, strict=True))


def typed(path: Path, out: Path, *more: str) -> list[str]:
    """Give the words."""
    return ["configs", "predict", "--csv", str(path), "--out", str(out), *more]


def test_the_program_predicts_a_table(tmp_path: Path) -> None:
    """A process of its own, as it is installed: two of five rows, the others with reasons."""
    out = tmp_path / "out.csv"
    program = str(Path(sys.executable).parent / "wattmesh")
    ran = subprocess.run(
        [program, *typed(table(tmp_path, ROWS), out)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    first, *left_out = ran.stdout.splitlines()
    assert first == f"predicted 2 of 5 rows; wrote {out}"
    assert left_out[0] == "left out 2: layers is missing"
    assert left_out[1].startswith("left out 1: no GPU is known as 'abacus'; known are a100")
    found = read(out)
    assert [bool(each["pred_step_time_s"]) for each in found] == [True, False, False, False, True]
    assert [{name: each[name] for name in RIGHT} for each in found] == ROWS


def test_other_commands_do_not_load_what_predicting_needs() -> None:
    """SciPy takes longer to load than they run."""
    code = (
        "import sys; from wattmesh.controller.cli.main import main; main(['configs', '--help']); "
        "sys.exit(int('scipy' in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ran.returncode == 0


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, nothing else."""
    out = tmp_path / "out.csv"
    assert main(typed(table(tmp_path, ROWS), out, "--json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["predicted"], said["file"]) == (5, 2, str(out))
    assert said["excluded"].pop("layers is missing") == 2
    assert list(said["excluded"].values()) == [1]


def test_a_table_of_which_nothing_can_be_predicted_is_written_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row with its reason; it ran, so it ends with 0."""
    out = tmp_path / "out.csv"
    assert main(typed(table(tmp_path, ROWS[1:4]), out)) == 0
    assert "predicted 0 of 3 rows" in capsys.readouterr().out
    assert [bool(each["excluded_reason"]) for each in read(out)] == [True] * 3


def failed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that fails for what it was given: one sentence, and exit status 1."""
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "bug in wattmesh" not in said.err
    assert "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize("linked", [None, Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize("measured", [False, True])
def test_a_table_that_is_read_is_not_written_over(
    tmp_path: Path,
    linked: Callable[[Path, Path], None] | None,
    measured: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By its own name or through a link; written again with its columns, it would win nothing."""
    asked = table(tmp_path, ROWS)
    (tmp_path / "other").mkdir()
    steps = table(tmp_path / "other", [row(step_time_s=2)])
    taken = steps if measured else asked
    before, out = taken.read_bytes(), taken
    if linked is not None:
        out = tmp_path / "link.csv"
        linked(out, taken)
    told = failed(typed(asked, out, "--measured", str(steps)), capsys)
    assert "that is read; name another file" in told
    assert taken.read_bytes() == before


def test_predictions_may_be_written_again(tmp_path: Path) -> None:
    """Over what they were before; a second time changes nothing."""
    asked, out = table(tmp_path, ROWS), tmp_path / "out.csv"
    assert main(typed(asked, out)) == 0
    once = out.read_bytes()
    assert list(read(out)[0]) == [*RIGHT, *ADDED]
    assert main(typed(asked, out)) == 0
    assert out.read_bytes() == once


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_missing_folder_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    """Nothing is made, and the table stays."""
    out = tmp_path / "gone" / "out.csv"
    said = failed(typed(table(tmp_path, ROWS), out, *more), capsys)
    assert f"cannot write {out}: No such file or directory; name another file" in said
    assert not out.parent.exists()


def test_a_wrong_table_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not there, a folder, no table; what stood at --out is untouched."""
    out = tmp_path / "out.csv"
    out.write_text("old")
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    assert "No such file" in failed(typed(tmp_path / "gone.csv", out), capsys)
    assert "cannot read" in failed(typed(tmp_path, out), capsys)
    assert "has no line of column names" in failed(typed(empty, out), capsys)
    assert out.read_text() == "old"


@pytest.mark.parametrize("words", [["--csv", "in.csv"], ["--out", "out.csv"], []])
def test_a_missing_word_is_misuse(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and the option's name."""
    assert main(["configs", "predict", *words]) == 2
    assert "Missing option" in capsys.readouterr().err
