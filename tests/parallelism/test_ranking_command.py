"""`configs search --grid`: what is worth measuring, corrected by what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from wattmesh.controller.cli.main import main

TRACE = Path(__file__).resolve().parents[2] / "examples" / "demo" / "gb-2023-05-26.csv"
SEARCH = ["configs", "search", "--model", "llama3-8b", "--gpus", "16xh100", "--batch", "64"]
ASKED = [*SEARCH, "--grid", str(TRACE), "--deadline", "12", "--tokens", "5e9"]


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
layout = {{ pp = {pp}, dp_shard = {dp}, cp = {cp}, tp = {tp}, ep = {ep}, micro_batch = 1 }}
tokens_per_s = {rate}
power_w = 15000
equivalence = "exact"
evidence = "measured"
"""


def answered(capsys: pytest.CaptureFixture[str], words: list[str]) -> dict[str, Any]:
    """The JSON of a search."""
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_points_are_ranked_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a measured point the fastest comes first; a picture of it is a PNG."""
    answer = answered(capsys, [*ASKED, "--picture", str(tmp_path / "points.png")])
    assert (tmp_path / "points.png").read_bytes().startswith(b"\x89PNG")
    assert answer["measured"] == []
    first, second = answer["next"][:2]
    assert first["saves_expected_g"] is None
    assert "others are compared with it" in first["sentence"]
    assert second["saves_expected_g"] > 0
    worth = [each["saves_expected_g"] for each in answer["next"][1:]]
    assert worth == sorted(worth, reverse=True)
    assert len(answer["next"]) == len(answer["points"])
    assert main(ASKED) == 0
    assert "MEASURE NEXT" in capsys.readouterr().out


def test_a_measured_point_moves_the_others_and_is_not_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that takes 1.3 times what is predicted: a warning, and the rest follow."""
    plain = answered(capsys, ASKED)
    at = next(each for each in plain["points"] if each["clock"] == 1.0)
    path = tmp_path / "catalogue.toml"
    path.write_text(CATALOGUE.format(**at["degrees"], rate=at["tokens_per_s"] / 1.3))
    answer = answered(capsys, [*ASKED, "--catalogue", str(path)])
    (mine,) = answer["measured"]
    assert mine["alarm"]
    assert 1.1 < mine["step_over_predicted"] < 1.5
    assert all(each["corrected"] == 1.0 for each in plain["points"])
    assert all(1.02 < each["corrected"] < 1.6 for each in answer["points"])
    before = {(str(each["degrees"]), each["clock"]): each["spread"] for each in plain["points"]}
    same = [each for each in answer["points"] if (str(each["degrees"]), each["clock"]) in before]
    assert same
    for each in same:
        assert each["spread"] < before[str(each["degrees"]), each["clock"]]
    assert main([*ASKED, "--catalogue", str(path)]) == 0
    said = capsys.readouterr().out
    assert "times what is predicted" in said
    assert "1 point measured" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*SEARCH, "--deadline", "3"], "add --grid FILE"),
        ([*SEARCH, "--grid", str(TRACE), "--tokens", "1e9"], "add --deadline HOURS"),
        ([*SEARCH, "--grid", str(TRACE), "--deadline", "3"], "--tokens N"),
        ([*SEARCH, "--grid", str(TRACE), "--deadline", "4000", "--tokens", "1"], "longer trace"),
        *(
            ([*SEARCH, "--grid", str(TRACE), "--deadline", "4", "--tokens", each], "'--tokens'")
            for each in ("inf", "nan", "0", "-1")
        ),
        ([*SEARCH, "--grid", str(TRACE), "--deadline", "nan", "--tokens", "1"], "'--deadline'"),
        ([*SEARCH, "--grid", "gone.csv", "--deadline", "4", "--tokens", "1"], "gone.csv"),
    ],
)
def test_what_ranks_nothing_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with what to add."""
    assert main(words) != 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("global_batch = 64", "global_batch = 32", "different jobs"),
        ("gpus = 16", "gpus = 32", "has 32 GPUs, the search only 16"),
        ('power_scope = "node"', 'power_scope = "facility"', "watts of the facility"),
    ],
)
def test_a_catalogue_that_contradicts_the_job_is_refused(
    tmp_path: Path, old: str, new: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another batch, with more GPUs, with other watts."""
    path = tmp_path / "catalogue.toml"
    text = CATALOGUE.format(tp=2, pp=1, dp=8, cp=1, ep=1, rate=1e5)
    assert old in text
    text = text.replace(old, new)
    path.write_text(text.replace("dp_shard = 8", "dp_shard = 16") if "gpus = 32" in new else text)
    assert main([*ASKED, "--catalogue", str(path)]) != 0
    assert said in capsys.readouterr().err
