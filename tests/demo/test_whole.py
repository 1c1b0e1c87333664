"""The demo as users run it, smaller: real daemons, real processes, real switches, all ended."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from examples.demo.plan import DemoPlan, DemoPolicy
from examples.demo.progress import ProgressPrinter
from examples.demo.run import run
from tests.audit.independent import differences
from tests.builders.points import catalogue, point
from tests.demo.test_report import SHOWN
from wattmesh.controller.cli.main import main
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import (
    SwitchCost,
)
from wattmesh.reconfig.layout import Layout

START_S = 60.0


def known_points(folder: Path) -> Path:
    """Write a catalogue as profiling would, so that a test need not profile."""
    shapes = {
        "A": (Layout(dp_shard=2), 1100.0, 1270.0),
        "B": (Layout(), 690.0, 690.0),
        "C": (Layout(tp=2), 1080.0, 1270.0),
    }
    points = tuple(
        point(name, *facts, sources={"tokens_per_s": "simulated", "power_w": "simulated"})
        for name, facts in shapes.items()
    )
    known = catalogue(
        *points,
        job="known",
        idle_power_w_per_gpu=55.0,
        seq_len=32,
        switch=SwitchCost(layout_s=1.5, layout_energy_j=300.0, source="measured"),
        simulated=("power_w",),
    )
    catalogue_file.save(known, folder / "known.toml")
    return folder / "known.toml"


def still_there(folder: Path) -> list[str]:
    """List every process whose command line names `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            found += [line] if str(folder) in line else []
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    """One small demo: 24 hours in 45 seconds, 32 steps, 2 ranks, all the time in the world.

    It is started where another `examples` stands, which is none of the demo's.
    """
    home = tmp_path_factory.mktemp("whole")
    (home / "examples").mkdir()
    (home / "examples" / "__init__.py").touch()
    plan = DemoPlan(
        folder=home / "out",
        day_s=45.0,
        steps=32,
        device_tokens_per_s=600.0,
        processes=2,
        layout="dp_shard=2",
        act_by_step=9,
        order_at=0.0,
        order_by=0.0,
        policy=DemoPolicy(dwell_s=0.5, gain_factor=1.0),
        deadline_factor=4.0,
    )
    with contextlib.chdir(home):
        report = run(plan, ProgressPrinter(silent=True), known=known_points(home))
    return plan.folder, report


def test_a_whole_demo(demo: tuple[Path, Mapping[str, Any]]) -> None:
    """Real switches at real boundaries; the loss did not move; every promised figure is there."""
    folder, report = demo
    assert set(SHOWN) <= set(report)
    assert report["switches"] >= 1
    assert len(report["layouts"]) == report["switches"] + 1 or report["switches"] > 2
    assert report["max_rel_loss_difference_100"] <= 1e-5
    assert report["loss_last"] < report["loss_first"]
    assert report["control_saved_g"] == 0
    assert 0 < report["hindsight_bound_g"] <= report["carbon_g"]
    assert json.loads((folder / "report.json").read_text()) == report
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    assert still_there(folder) == []


def test_the_saving_can_be_recomputed_from_raw_rows(
    demo: tuple[Path, Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The audit's rows give the report's saving to the microgram, by another piece of code."""
    folder, report = demo
    words = ["budget", "--audit", "train", "--offline", str(folder / "main" / "wattmesh.toml")]
    assert main([*words, "--json"]) == 0
    audit = json.loads(capsys.readouterr().out)
    assert differences(audit) == []
    assert audit["saved_ug"] == round(report["ledger_saved_g"] * 1e6)
    audit["actual"][0]["energy_mj"] += 1_000_000
    assert differences(audit) != []


def test_why_tells_the_switches_afterwards(
    demo: tuple[Path, Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """After the demo each switch is one sentence with its reason and what it took."""
    folder, report = demo
    config = str(folder / "main" / "wattmesh.toml")
    assert main(["why", "train", "--offline", config]) == 0
    told = capsys.readouterr().out
    assert told.count("confirmed in") == report["switches"]
    assert "an operator ordered it" in told
    assert DemoPlan(folder=folder).order_reason in told


def test_ctrl_c_ends_everything_and_leaves_the_folder(tmp_path: Path) -> None:
    """An interrupt while processes start ends them all, exits 130 and says where the rest is."""
    out = tmp_path / "out"
    words = [sys.executable, "-m", "wattmesh.controller.cli.main", "demo", "--out", str(out),
             "--catalogue", str(known_points(tmp_path))]  # fmt: skip
    # What a shell starts in the background ignores interrupts, and so would the tests' children.
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heeds,  # noqa: PLW1509 - no other thread of pytest holds a lock
    ) as process:
        try:
            wait_for_log(out / "logs" / "main-job.log", process)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=START_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert f"what there is lies in {out}" in said
    assert (out / "logs" / "main-job.log").exists()
    assert still_there(out) == []


def wait_for_log(log: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until a part of the demo has started."""
    deadline_s = time.monotonic() + START_S
    while not log.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    """A folder that no demo made is not touched, and the sentence says what to do."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputInvalid, match="was not touched"):
        run(DemoPlan(folder=tmp_path), ProgressPrinter(silent=True))
    assert (tmp_path / "thesis.txt").exists()


def test_an_installation_without_the_demo_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Half of an example is none: the sentence names both halves and two ways on."""
    (tmp_path / "examples" / "demo").mkdir(parents=True)
    monkeypatch.setattr("wattmesh.controller.cli.services.demo.HOLD_EXAMPLES", (tmp_path,))
    assert main(["demo", "--out", str(tmp_path / "out")]) == 1
    assert "clone the repository and run `make demo` there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["--seconds", "1"], ["--out"], ["--catalogue"]])
def test_misuse_of_the_demo_exits_2(
    words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A day of one second, or an option without its value, is misuse."""
    assert main(["demo", *words]) == 2
    assert "Error: " in capsys.readouterr().err
