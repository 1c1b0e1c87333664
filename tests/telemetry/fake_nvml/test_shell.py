"""The fake from a shell: what is typed reaches the GPU, and what fails says why."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wattmesh.telemetry.fake_nvml import FakeGpu, FakeNvml
from wattmesh.telemetry.fake_nvml.__main__ import DEEDS, main

IN_CODE_ONLY = {"truth", "busy", "work", "processes"}
"""`show` tells the truth; a shell keeps no process alive; `process` and `no-processes` list."""


def test_every_control_of_a_gpu_is_on_the_shell() -> None:
    """A method that is added to FakeGpu must be added to the table too."""
    methods = {
        name
        for name, _ in inspect.getmembers(FakeGpu, inspect.isfunction)
        if not name.startswith("_")
    }
    assert {each.replace("_", "-") for each in methods - IN_CODE_ONLY} | {"no-processes"} == set(
        DEEDS
    )


def test_every_word_is_in_the_documentation() -> None:
    """A word that is added must be explained in docs/fake-nvml.md."""
    page = (Path(__file__).parents[3] / "docs" / "fake-nvml.md").read_text()
    words = {*DEEDS, "make", "show", "run", "permit", "reload-driver"}
    missing = [each for each in words if not re.search(rf"`{each}\b|fake_nvml {each} ", page)]
    assert missing == []


def test_gpus_are_made_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table for people and as JSON for programs."""
    folder = str(tmp_path / "gpus")
    assert main(["make", folder, "--gpus", "3", "--board", "b200", "--update-ms", "0"]) == 0
    assert capsys.readouterr().out.count("130.0 W of 1000") == 3
    assert main(["load", folder, "all", "1.0"]) == 0
    assert main(["foreign-lock", folder, "2", "990"]) == 0
    assert main(["show", folder, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["library"] == str(tmp_path / "gpus" / "libnvidia-ml.so.1")
    assert [each["power_w"] for each in shown["gpus"][:2]] == [985, 985]
    assert shown["gpus"][2]["lock_mhz"] == 990


@pytest.mark.parametrize(
    ("words", "fact", "value"),
    [
        (["lose", "F", "0"], "lost", True),
        (["mig", "F", "0", "on"], "mig", True),
        (["persistence", "F", "0", "off"], "persistence", False),
        (["draw", "F", "0", "321"], "power_w", 321),
        (["foreign-limit", "F", "0", "300"], "requested_limit_w", 300),
        (["out-of-band-cap", "F", "0", "250"], "enforced_limit_w", 250),
        (["reasons", "F", "0", "0x41"], "reasons", 0x41),
        (["load", "F", "0", "0.5"], "utilization", 0.5),
    ],
)
def test_a_word_reaches_the_gpu(fake: FakeNvml, words: list[str], fact: str, value: object) -> None:
    """And only the GPU it names."""
    typed = [str(fake.folder) if each == "F" else each for each in words]
    before = getattr(fake.gpu(1).truth(), fact)
    assert main(typed) == 0
    assert getattr(fake.gpu(0).truth(), fact) == value
    assert getattr(fake.gpu(1).truth(), fact) == before


def test_every_deed_can_be_done_from_the_shell(fake: FakeNvml) -> None:
    """With a word of the kind it asks for."""
    sample = {"_switch": "on", "_number": "0.5", "_whole": "300", "_watts": "none"}
    for name, deed in DEEDS.items():
        words = [sample.get(kind.__name__, "none") for _, kind in deed.words]
        if name == "foreign-limit":
            words = ["300"]
        assert main([name, str(fake.folder), "0", *words]) == 0, name
        fake.gpu(0).come_back()
        fake.gpu(0).hang(0)


def test_rights_and_driver_are_of_the_whole_node(
    fake: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU named; and a reload takes a limit away."""
    fake.gpu(0).foreign_limit(300)
    assert main(["permit", str(fake.folder), "off"]) == 0
    assert main(["reload-driver", str(fake.folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["gpus"][0]["requested_limit_w"] == 700


def test_a_program_runs_on_the_gpus(fake: FakeNvml) -> None:
    """It finds the library by its usual name."""
    look = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    command = [sys.executable, "-m", "wattmesh.telemetry.fake_nvml", "run", str(fake.folder)]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", look], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nowhere"], "create it first"),
        (["load", "F", "7", "1"], "no fake GPU"),
        (["load", "F", "GPU-x", "1"], "no fake GPU"),
        (["load", "F", "0", "2"], "must lie in 0..1"),
        (["make", "F"], "already"),
        (["run", "F", "--"], "needs a program"),
        (["run", "F", "--", "./no-such-program"], "cannot run"),
    ],
)
def test_what_fails_says_why_in_one_sentence(
    fake: FakeNvml, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and no traceback."""
    typed = [str(fake.folder) if each == "F" else each for each in words]
    assert main(typed) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("fake_nvml: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [[], ["dance"], ["load", "F", "0"], ["mig", "F", "0", "maybe"], ["draw", "F", "0", "x"]],
)
def test_misuse_ends_with_code_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And shows how to use it."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage" in capsys.readouterr().err
