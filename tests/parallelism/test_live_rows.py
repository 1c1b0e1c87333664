"""What a live run measured, exported and read back by `configs predict --measured`."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.cli.answering import answering
from wattmesh.controller.cli.main import main
from wattmesh.controller.cost_model.live_rows import COLUMNS

CATALOGUE = """
[job]
name = "llama"
tokens_total = 5_000_000_000
global_batch = 64
seq_len = 8192
reference = "A"
power_scope = "node"
[[point]]
id = "A"
gpus = 16
layout = { dp_shard = 8, tp = 2, micro_batch = 1 }
tokens_per_s = 160000
power_w = 15000
equivalence = "exact"
evidence = "measured"
[[point]]
id = "B"
gpus = 16
layout = { dp_shard = 4, tp = 4 }
tokens_per_s = 140000
power_w = 14000
equivalence = "numerical"
evidence = "measured"
[[point]]
id = "slow"
gpus = 16
clock_mhz = 1200
layout = { dp_shard = 8, tp = 2, micro_batch = 1 }
tokens_per_s = 110000
power_w = 9000
equivalence = "numerical"
evidence = "measured"
"""


def line(point: str, tokens_per_s: float, stated: float) -> dict[str, Any]:
    """What the daemon says of one point."""
    return {
        "point": point,
        "tokens_per_s": tokens_per_s,
        "catalogue_tokens_per_s": stated,
        "measured_s": 7200.0,
        "until": "2026-11-23T12:00:00Z",
    }


MEASURED = [line("A", 80_000, 160_000), line("B", 70_000, 140_000), line("slow", 55_000, 110_000)]


class Place:
    """A catalogue, and a daemon that answers of one run."""

    def __init__(self, folder: Path) -> None:
        """Write the catalogue."""
        self.folder, self.socket = folder, folder / "d.sock"
        self.catalogue, self.out = folder / "c.toml", folder / "measured.csv"
        self.catalogue.write_text(CATALOGUE)
        self.run: dict[str, Any] = {"name": "llm", "measured": MEASURED}

    def words(self, *more: str) -> list[str]:
        """Give the words of the export."""
        return [
            *("configs", "measured", "llm", "--catalogue", str(self.catalogue), "--gpu", "h100"),
            *("--out", str(self.out), "--socket", str(self.socket), *more),
        ]

    def export(self, *more: str) -> int:
        """Type them."""
        with answering(self.socket, {"/v1/runs/llm/why": (200, {"run": self.run})}):
            return main(self.words(*more))

    def rows(self) -> list[dict[str, str]]:
        """Read what was written."""
        with self.out.open(newline="") as opened:
            return list(csv.DictReader(opened, strict=True))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A fresh one."""
    return Place(tmp_path)


def test_what_was_measured_goes_into_predictions(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both points at full clock, with the model's sizes; and how much they say of each other."""
    assert place.export("--model", "llama3-8b", "--micro-batch", "1") == 0
    said = capsys.readouterr().out
    assert "2 measured points of llm" in said
    assert "left out slow: its clock is 1200 MHz" in said
    first, second = place.rows()
    assert tuple(first) == COLUMNS
    assert (first["tokens_per_s_per_gpu"], first["layers"], first["zero"]) == ("5000", "32", "1")
    assert (second["tp"], second["micro_batch"], second["global_batch"]) == ("4", "1", "64")
    out = place.folder / "out.csv"
    predict = ["configs", "predict", "--csv", str(place.out), "--out", str(out)]
    assert main(predict) == 0
    plain = out.read_text()
    capsys.readouterr()
    assert main([*predict, "--measured", str(place.out)]) == 0
    said = capsys.readouterr().out
    assert "corrected by 2 measured steps" in said
    assert "measured steps improve each other's predictions: one that is left out is off by" in said
    with out.open(newline="") as opened:
        for row in csv.DictReader(opened):
            measured_s = 64 * 8192 / (16 * float(row["tokens_per_s_per_gpu"]))
            assert float(row["pred_step_time_s"]) == pytest.approx(measured_s, rel=0.15)
    assert plain != out.read_text()


def test_one_measured_step_says_what_a_second_would_tell(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """No improvement is claimed that nothing shows."""
    place.run["measured"] = MEASURED[:1]
    assert place.export("--model", "llama3-8b") == 0
    out = place.folder / "out.csv"
    words = ["configs", "predict", "--csv", str(place.out), "--out", str(out)]
    assert main([*words, "--measured", str(place.out)]) == 0
    said = capsys.readouterr().out
    assert "predicted times change by a factor of" in said
    assert "a second one would say how well it does" in said


def test_what_nobody_knows_is_left_empty_and_said(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model's sizes, and what no catalogue states; predictions then refuse the rows."""
    place.catalogue.write_text(CATALOGUE.replace("seq_len = 8192\n", ""))
    assert place.export() == 0
    said = capsys.readouterr().out
    assert "layers, hidden, heads, kv_heads, ffn, gated_mlp, vocab are empty" in said
    assert "seq_len is empty" in said
    assert "--micro-batch" in said
    assert place.rows()[0]["layers"] == ""
    words = ["configs", "predict", "--csv", str(place.out), "--out", str(place.folder / "o.csv")]
    assert main([*words, "--measured", str(place.out)]) == 1
    assert "no measured step can be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("measured", "more", "words"),
    [
        ([], [], "has measured no point of llm lately"),
        ([line("Z", 1.0, 1.0)], [], "its point Z is missing"),
        ([line("A", 1.0, 150_000.0)], [], "its point A is another"),
        (MEASURED, ["--gpu", "cpu"], "no GPU is known as 'cpu'"),
        (MEASURED, ["--model", "mine"], "'mine' is not known"),
        (MEASURED, ["--model", "llama3-8b", "--hf-config", "x"], "not by both"),
        (MEASURED, ["--catalogue", "gone.toml"], "gone.toml"),
        (MEASURED, ["--out", "/proc/x/y"], "cannot write /proc/x/y"),
    ],
)
def test_what_cannot_be_exported_says_why(
    place: Place,
    measured: list[dict[str, Any]],
    more: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing measured, another catalogue, unknown GPUs and models: one sentence, and no file."""
    place.run["measured"] = measured
    assert place.export(*more) == 1
    assert words in capsys.readouterr().err
    assert not place.out.exists()


def test_the_catalogue_is_never_written_over(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """By no name."""
    assert place.export("--out", str(place.catalogue)) == 1
    assert "is the table" in capsys.readouterr().err
    assert place.catalogue.read_text() == CATALOGUE
