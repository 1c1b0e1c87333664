"""`wattmesh experts`: files in, answers out; whatever is wrong with a file is one sentence."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from wattmesh.controller.cli.main import main

GPU: dict[str, Any] = {"busy_w": 700, "idle_w": 70, "tokens_per_s": 1000.0}
ROUTING: dict[str, Any] = {
    "gpus": [GPU | {"name": f"g{at}", "node": f"n{at // 2}"} for at in range(4)],
    "crossing_j": 0.5,
    "experts": 4,
    "chosen": [[[0, 2], [1, 3]] * 20, [[0, 3], [1, 2]] * 20],
}
COUNTERS: dict[str, Any] = {
    "gpus": [
        {
            "gpu": name,
            "sweep": {
                "joules_per_token": joules,
                "idle_w": 70,
                "joules_per_token_deviation": joules / 5,
                "idle_w_deviation": 5,
            },
            "spans": [
                {"seconds": 60, "rows": rows, "energy_j": 70 * 60 + joules * rows}
                for rows in (1e6, 2e6, 3e6, 4e6) * 3
            ],
        }
        for name, joules in (("GPU-a", 1e-3), ("GPU-b", 2e-3))
    ]
}
SWEEP: dict[str, Any] = COUNTERS["gpus"][0]["sweep"]


def put(tmp_path: Path, value: Any) -> str:
    """Write a file."""
    path = tmp_path / "given.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command that must succeed, and read its JSON."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_place_brings_experts_of_one_token_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All pairs are cut by number, none when placed; the file that it writes says where."""
    out = tmp_path / "placement.json"
    answer = said(capsys, "experts", "place", put(tmp_path, ROUTING), "--out", str(out))
    assert answer["before"]["crossings"] == 80
    assert answer["after"]["crossings"] == 0
    written = json.loads(out.read_text())
    assert written["placement"] == answer["placement"]
    first, second = answer["placement"]
    assert first[0] // 2 == first[2] // 2
    assert second[0] // 2 == second[3] // 2
    stays = said(capsys, "experts", "place", put(tmp_path, ROUTING | {"tokens_stay": True}))
    assert stays["before"]["crossings"] == 160


@pytest.mark.parametrize(
    ("changed", "words", "sentence"),
    [
        ({"experts": 5}, [], "5 experts do not divide among 4 GPUs"),
        (
            {
                "gpus": [
                    GPU | {"name": f"g{at}", "slots": 2 * (at % 2), "node": "n"} for at in range(4)
                ]
            },
            ["--copies", "0"],
            "give every GPU so many `slots`",
        ),
        ({"chosen": [[[0, 1]] * 9 + [[2, 3]]]}, ["--copies", "1"], "leave --copies out with --run"),
    ],
)
def test_what_no_live_job_could_hold_is_not_asked_for(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    words: list[str],
    sentence: str,
) -> None:
    """A number that does not divide, GPUs of two sizes, copies: one sentence before any call."""
    given = put(tmp_path, ROUTING | changed)
    nowhere = str(tmp_path / "no.sock")
    assert main(["experts", "place", given, "--run", "r", "--socket", nowhere, *words]) == 1
    assert sentence in capsys.readouterr().err


def test_counts_mean_the_same_as_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a job counted itself, for who will not hand out what each token chose."""
    chosen = said(capsys, "experts", "place", put(tmp_path, ROUTING))
    counted: dict[str, Any] = {key: ROUTING[key] for key in ("gpus", "crossing_j")}
    pairs = [[(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    counted["counts"] = [
        {
            "loads": [20.0] * 4,
            "together": [
                [20.0 * ((a, b) in layer or (b, a) in layer) for b in range(4)] for a in range(4)
            ],
        }
        for layer in pairs
    ]
    answer = said(capsys, "experts", "place", put(tmp_path, counted))
    assert answer["after"]["crossings"] == chosen["after"]["crossings"] == 0
    assert answer["before"]["crossings"] == 80


@pytest.mark.parametrize("name", ["together", "onward"])
def test_counts_that_do_not_sum_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A pair has more tokens than one of both experts; as many are taken."""
    given: dict[str, Any] = {key: ROUTING[key] for key in ("gpus", "crossing_j")}
    layer = {"loads": [5, 9], "together": [[0, 5], [5, 0]]}
    given["counts"] = [layer | {"onward": [[5, 5], [5, 9]]}, layer]
    assert main(["experts", "place", put(tmp_path, given)]) == 0
    given["counts"][0][name] = [[0, 6], [6, 0]]
    capsys.readouterr()
    assert main(["experts", "place", put(tmp_path, given)]) == 1
    told = capsys.readouterr().err
    assert f"{name} has 6 tokens of the experts 0 and 1 in layer 0, and one of both has" in told


def test_experts_that_do_not_divide_are_placed_but_not_ordered_nor_in_a_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file may have any number; a live job has as many on each GPU."""
    five = put(tmp_path, ROUTING | {"experts": 5, "chosen": [[[0, 1], [2, 4]]]})
    assert main(["experts", "place", five]) == 0
    capsys.readouterr()
    nobody = ["--run", "moe", "--socket", str(tmp_path / "no.sock")]
    for more in (nobody, [*nobody, "--dry-run"]):
        assert main(["experts", "place", five, *more]) == 1
        assert "5 experts do not divide among 4 GPUs" in capsys.readouterr().err


def test_three_classes_share_a_layer(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts by speed of H100, L40S and A100; more classes than there could be are refused."""
    answer = said(capsys, "experts", "bench", "--gpus", "2xh100,2xl40s,2xa100")
    assert answer["counts_by_speed"] == {"h100": 19.0, "l40s": 7.0, "a100": 6.0}
    assert answer["rows"][1]["energy_over_equal"] < 0.9
    names = ["a100", "a100-40gb", "a100-100g", "l40s", "h100", "h100-500w", "h200", "b200", "b300"]
    assert main(["experts", "bench", "--gpus", ",".join(f"1x{each}" for each in names)]) == 1
    assert "more than 8 classes" in capsys.readouterr().err


def test_the_screen_shows_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the picture of the load, copies, and that nothing was moved."""
    hot = ROUTING | {"chosen": [[[0, 1]] * 30 + [[2, 3]] * 5]}
    assert main(["experts", "place", put(tmp_path, hot), "--copies", "1"]) == 0
    screen = capsys.readouterr().out
    assert "1 layers of 4 experts on 4 GPUs; nothing was moved" in screen
    assert "crossings between nodes" in screen
    assert "█" in screen
    assert "copies of hot experts" in screen


def test_costs_are_learned_and_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two GPUs, one twice as dear; a span that cannot be is told and not used."""
    answer = said(capsys, "experts", "costs", put(tmp_path, COUNTERS))
    assert [each["joules_per_token"] for each in answer["gpus"]] == pytest.approx([1e-3, 2e-3])
    assert [each["score"] for each in answer["gpus"]] == pytest.approx([-1, 1])
    spoilt = deepcopy(COUNTERS)
    spoilt["gpus"][0]["spans"][3]["energy_j"] = -1
    spoilt["gpus"][1]["simulated"] = True
    assert main(["experts", "costs", put(tmp_path, spoilt)]) == 0
    screen = capsys.readouterr().out
    assert "all scores are 0: some GPUs are real and some simulated" in screen
    assert "GPU-a: energy_j of a counter's span is -1.0" in screen
    assert "GPU-b (simulated)" in screen


def test_bench_models_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts by speed save on mixed GPUs, leaning a little more; on equal ones nothing does."""
    rows = said(capsys, "experts", "bench", "--gpus", "4xh100,4xa100")["rows"]
    equal, by_speed, leaning = (row["energy_over_equal"] for row in rows)
    assert equal == 1.0
    assert 0.78 < by_speed < 0.82
    assert 0.73 < leaning < by_speed
    alike = said(capsys, "experts", "bench", "--gpus", "8xh100")
    assert [row["energy_over_equal"] for row in alike["rows"]] == pytest.approx([1.0] * 3)
    assert main(["experts", "bench", "--gpus", "8xh100"]) == 0
    assert "all GPUs are alike" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "holds no JSON object"),
        ({"gpus": []}, "gpus must be a list of 1 to 512 things"),
        ({"gpus": [7]}, "GPU 0 is no JSON object"),
        ({"gpus": [GPU]}, "GPU 0 has no text 'name'"),
        (
            {"gpus": [GPU | {"name": "a", "node": "n", "tokens_per_s": 0}]},
            "tokens_per_s is 0, not from 0.001",
        ),
        ({"gpus": [GPU | {"name": "a", "node": "n", "busy_w": "7"}]}, "no number 'busy_w'"),
        ({"gpus": [GPU | {"name": "a", "node": "n", "idle_w": 10**400}]}, "beyond any number"),
        ({"gpus": [GPU | {"name": "a", "node": "n"}] * 2}, "names a GPU twice"),
        ({"gpus": [GPU | {"name": "a", "node": "n", "slots": 3}]}, "do not fit into 3 slots"),
        ({"gpus": [GPU | {"name": "a", "node": "n", "slots": 2.5}]}, "whole numbers up to"),
        ({"experts": 2}, "none of the 2"),
        ({"experts": 10**9}, "whole number from 1 to"),
        ({"experts": True}, "whole number from 1 to"),
        ({"chosen": [[[0, 1]], [[0, 1], [1, 0]]]}, "different numbers of tokens"),
        ({"chosen": [[[0, 1], [1]]]}, "rows of one length"),
        ({"chosen": [[[0, 0.5]]]}, "no whole number"),
        ({"chosen": [[["a"]]]}, "no table of numbers"),
        ({"chosen": [[]]}, "no table"),
        ({"chosen": [[[-1, 0]]]}, "none of the 4"),
        ({"counts": []}, "one of them"),
        ({"crossing_j": float("nan")}, "a crossing costs nan"),
        ({"crossing_j": None}, "no number 'crossing_j'"),
        ({"tokens_stay": 1}, "tokens_stay must be true or false"),
        ({"speed": 1}, "has 'speed'; it may have"),
        ({"chosen": [[[0, 1], [2, 2]]]}, "chose one expert twice"),
    ],
)
def test_a_file_that_cannot_be_placed_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: Any, sentence: str
) -> None:
    """On standard error, exit status 1, no traceback."""
    value = changed if isinstance(changed, str) else ROUTING | changed
    assert main(["experts", "place", put(tmp_path, value)]) == 1
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert "a bug" not in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sweep": None}, "the sweep of GPU 0 is no JSON object"),
        ({"sweep": {"idle_w": 70}}, "has no number"),
        ({"sweep": SWEEP | {"idle_w": -1}}, "sweep of GPU 0 cannot be: a sweep of (0.00"),
        ({"sweep": SWEEP | {"idle_w": float("nan")}}, "sweep of GPU 0 cannot be: a sweep"),
        ({"spans": []}, "spans of GPU 0 must be a list of 1 to"),
        ({"spans": [{"seconds": 60}]}, "span 0 of GPU 0 has no number"),
        ({"spans": [{"seconds": 60, "rows": 1, "energy_j": 1, "clock_mhz": 1.5}]}, "whole number"),
        ({"simulated": "no"}, "simulated must be true or false"),
        ({"gpu": "GPU-b"}, "names a GPU twice"),
    ],
)
def test_counters_that_cannot_be_read_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: Any, sentence: str
) -> None:
    """On standard error, exit status 1."""
    value = deepcopy(COUNTERS)
    value["gpus"][0] |= changed
    assert main(["experts", "costs", put(tmp_path, value)]) == 1
    told = capsys.readouterr().err
    assert sentence in told
    assert "a bug" not in told


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("bench", "--gpus", "4xh100", "--experts", "3"), "4 GPUs cannot share 3 experts"),
        (("bench", "--gpus", "4xh900"), "no GPU is known as"),
        (("bench", "--gpus", "9999xh100", "--experts", "4096"), "more than 1024 GPUs"),
        (("place", "/nowhere/at/all.json"), "No such file"),
        (("costs", "/dev/zero"), "no regular file"),
    ],
)
def test_other_misuse_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    """Exit status 1."""
    assert main(["experts", *words]) == 1
    assert sentence in capsys.readouterr().err
