"""`wattmesh checkpoint`: what a person types, reads, and what a script gets."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.universal.sources import foreign
from wattmesh.controller.cli import progress
from wattmesh.controller.cli.checkpoint import checkpoint_screen as screen
from wattmesh.controller.cli.main import main
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.verify import Result


@pytest.fixture
def physical(tmp_path: Path) -> Path:
    """A physical checkpoint."""
    (tmp_path / "src").mkdir()
    return write_physical(foreign.write(tmp_path / "src")[0], tmp_path / "uc")


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    """A virtual checkpoint, never hashed."""
    (tmp_path / "foreign").mkdir()
    return write_virtual(foreign.write(tmp_path / "foreign")[0], tmp_path / "virtual")


def run(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    """What a command prints."""
    assert main(["checkpoint", *map(str, words)]) == status
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> Any:
    """What a command says as JSON."""
    return json.loads(run(capsys, *words, "--json", status=status))


def test_convert_says_what_was_found_and_what_comes_next(
    physical: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kind of source, tensors by state, time, and that a virtual one is not verified yet."""
    words = ("convert", physical, tmp_path / "v", "--kind", "virtual", "--no-hash")
    screen = run(capsys, *words)
    assert "physical universal checkpoint" in screen
    assert "virtual checkpoint of 12 tensors" in screen
    assert "unverified" in screen
    assert f"verify {tmp_path / 'v'} --record" in screen
    answer = told(capsys, "convert", tmp_path / "v", tmp_path / "p", "--kind", "physical")
    assert answer["verified"] is True
    assert answer["source_kind"] == "universal"
    assert answer["states"] == {"param": 6, "exp_avg": 4, "extra": 2}
    assert answer["bytes"] > 0


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name, when it is converted and whenever it is looked at; nothing where all is in it."""
    source, target = tmp_path / "it", tmp_path / "v"
    source.mkdir()
    save_file({"w": np.ones(2, np.float32)}, source / "model.safetensors")
    words = ("convert", source, target, "--kind", "virtual", "--no-hash")
    assert "left out" not in run(capsys, "inspect", source)
    for name in "abcdefg":
        (source / f"{name}.json").write_text("{}")
    sentence = "a.json, b.json, c.json, d.json, e.json and 2 more"
    assert sentence in run(capsys, *words)
    assert sentence in run(capsys, "inspect", target)
    assert told(capsys, "inspect", target)["left_out"] == [f"{each}.json" for each in "abcdefg"]


def test_a_virtual_one_is_hashed_in_the_background(
    physical: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process of its own records the digests; from then on the checkpoint is verified."""
    answer = told(capsys, "convert", physical, tmp_path / "v", "--kind", "virtual")
    assert answer["verified"] is False
    _, status = os.waitpid(answer["hashing_pid"], 0)
    assert status == 0
    assert told(capsys, "verify", tmp_path / "v")["good"] is True
    said = run(capsys, "convert", physical, tmp_path / "w", "--kind", "virtual")
    pid = int(re.findall(r"process (\d+)", said)[0])
    os.waitpid(pid, 0)
    made = told(capsys, "convert", tmp_path / "v", tmp_path / "p", "--kind", "physical")
    assert made["hashing_pid"] is None


def test_misuse_and_failure(
    physical: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 for words that make no sense, 1 with one sentence for a source that is none."""
    assert main(["checkpoint", "convert", str(physical), str(tmp_path / "x")]) == 2
    assert main(["checkpoint", "prune", str(tmp_path), "--keep", "0"]) == 2
    capsys.readouterr()
    words = ["convert", str(tmp_path / "none"), str(tmp_path / "x"), "--kind", "virtual"]
    assert main(["checkpoint", *words]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("wattmesh: ")
    assert said.err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_inspect(physical: Path, virtual: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both kinds, as a screen and as JSON; one tensor and where it lies."""
    assert "verified" in run(capsys, "inspect", physical)
    assert "unverified" in run(capsys, "inspect", virtual)
    answer = told(capsys, "inspect", virtual)
    assert (answer["kind"], answer["step"], answer["verified"]) == ("virtual", 7, False)
    assert answer["source"]["kind"] == "foreign"
    assert answer["tensors"] == 12
    assert answer["tied"] == {"zero.again": "zero"}
    assert {(each["state"], each["dtype"]) for each in answer["states"]} >= {
        ("param", "float32"), ("param", "bfloat16"), ("extra", "bool"),
    }  # fmt: skip
    assert "files/rank0.bin" in run(capsys, "inspect", virtual, "--tensor", "zero.again")
    boxes = told(capsys, "inspect", virtual, "--tensor", "rows")
    assert [len(state["boxes"]) for state in boxes["states"]] == [2, 2]
    assert boxes["states"][0]["boxes"][0]["box"] == "[2:6, 0:5]"
    run(capsys, "inspect", virtual, "--tensor", "none", status=1)


def test_verify_exits_0_for_a_good_one_and_names_damage_with_1(
    physical: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tensor of the flipped byte."""
    assert "good, every byte as written" in run(capsys, "verify", physical)
    boxes = told(capsys, "inspect", physical, "--tensor", "rows")["states"][0]["boxes"]
    with (physical / boxes[0]["file"]).open("r+b") as file:
        file.seek(boxes[0]["offset"])
        byte = file.read(1)[0]
        file.seek(boxes[0]["offset"])
        file.write(bytes([byte ^ 1]))
    screen = run(capsys, "verify", physical, status=1)
    assert "! rows (param)" in screen
    assert screen.rstrip().endswith("damaged")
    answer = told(capsys, "verify", physical, status=1)
    assert answer["good"] is False
    assert [(each["tensor"], each["state"]) for each in answer["damage"]] == [("rows", "param")]


def test_verify_records_a_virtual_one(virtual: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unverified is not good; once recorded it is."""
    assert "unverified" in run(capsys, "verify", virtual, status=1)
    assert told(capsys, "verify", virtual, "--record")["recorded"] is True
    assert told(capsys, "verify", virtual)["good"] is True
    assert told(capsys, "inspect", virtual)["verified"] is True


def test_verify_against_another(
    physical: Path, virtual: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal ones, and one that differs in a tensor."""
    assert told(capsys, "verify", physical, "--against", virtual)["different"] == []
    assert "bit for bit it equals" in run(capsys, "verify", physical, "--against", virtual)
    (tmp_path / "more").mkdir()
    other = write_physical(foreign.write(tmp_path / "more", rows=7)[0], tmp_path / "other")
    screen = run(capsys, "verify", physical, "--against", other, status=1)
    assert "! zero (param) differs between" in screen
    assert "bit for bit it differs from" in screen


def test_a_long_list_of_differences_is_counted() -> None:
    """A screen shows some of them and how many more there are."""
    lines = screen.verified(Path("ck"), Result(damage=(), hashed=True), Path("other"),
                            [f"layers.{number} differs" for number in range(23)], 1.0)  # fmt: skip
    said = "\n".join(map(str, lines))
    assert "layers.19 differs" in said
    assert "layers.20 differs" not in said
    assert "and 3 more; --json lists them all" in said


def test_verify_against_memory_needs_a_job(
    physical: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint that no job wrote has no digest of memory; saying nothing would mislead."""
    assert main(["checkpoint", "verify", str(physical), "--memory"]) == 1
    assert "no job left a digest" in capsys.readouterr().err


def test_export(physical: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To Hugging Face, DCP and DeepSpeed; another element type than those is refused."""
    run(capsys, "export", physical, tmp_path / "hf", "--to", "hf", "--dtype", "bfloat16")
    assert list((tmp_path / "hf").glob("*.safetensors"))
    answer = told(
        capsys, "export", physical, tmp_path / "dcp", "--to", "dcp", "--names", "torchtitan"
    )
    assert answer["format"] == "dcp"
    assert (tmp_path / "dcp" / ".metadata").exists()
    assert "deepspeed" in run(capsys, "export", physical, tmp_path / "tag", "--to", "deepspeed")
    assert (tmp_path / "latest_universal").read_text() == "tag"
    run(capsys, "export", physical, tmp_path / "x", "--to", "hf", "--dtype", "int8", status=1)
    assert not (tmp_path / "x").exists()


def test_prune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run says what would go; the real one lets it go."""
    (tmp_path / "src").mkdir()
    (tmp_path / "run").mkdir()
    source, _ = foreign.write(tmp_path / "src")
    for step in (1, 2, 3):
        write_physical(source, tmp_path / "run" / f"step-{step:08d}")
    assert "would go" in run(capsys, "prune", tmp_path / "run", "--keep", "2", "--dry-run")
    assert len(os.listdir(tmp_path / "run")) == 3
    answer = told(capsys, "prune", tmp_path / "run", "--keep", "2")
    assert answer["deleted"] == ["step-00000001"]
    assert sorted(os.listdir(tmp_path / "run")) == ["step-00000002", "step-00000003"]
    assert "no checkpoint here" in run(capsys, "prune", tmp_path, "--keep", "1")


def test_a_bar_only_where_somebody_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal it tells bytes and speed; in a pipe there is nothing."""
    with progress.bar("verifying", 100) as advance:
        advance(100)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress.bar("verifying", 4_000_000) as advance:
        advance(4_000_000)
    assert "verifying" in capsys.readouterr().err
