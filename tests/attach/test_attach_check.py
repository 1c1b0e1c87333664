"""A user's script is walked through layouts on the spot: what is wrong with it is said, and where.

The script of docs/attach.md is all well, its sabotaged twins are not; each trains for real in every
layout it comes to.
"""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.attach.jobs import checked
from tests.daemon.waiting import wait_for
from tests.docs.blocks import block
from tests.hook.harness import Zygote
from wattmesh.controller.attach_check.judge import CheckedRun, judge, worst
from wattmesh.controller.cli.doctor.findings import CheckStatus
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.hook.attach_check.check_folder import VARIABLE, CheckFolder
from wattmesh.reconfig.hook.attach_check.walker import folder_of
from wattmesh.reconfig.layout import Layout

LAYOUTS = (Layout(dp_shard=2), Layout(tp=2), Layout())
PATIENCE_S = 150.0
OK, PROBLEM, UNKNOWN = CheckStatus.OK, CheckStatus.PROBLEM, CheckStatus.UNKNOWN

DOCUMENTED = "the script of docs/attach.md"
EARLY = "early loader"
"""The same script with its loader made in `build`, before the position is known."""

TWINS: dict[str, list[tuple[CheckStatus, str, str]]] = {
    DOCUMENTED: [
        (OK, "switch", "dp2 -> tp2: in place at step 5"),
        (OK, "switch", "tp2 -> 1 rank: in place at step 10"),
        (OK, "references", "at most 0.0% of a layout was still in memory"),
        (OK, "probe", "allowed is 4.0e-06: that is within rounding"),
        (OK, "data", "at 3 save steps the samples were the run's next ones"),
        (OK, "buffers", "at 2 save steps all ranks held the same"),
    ],
    EARLY: [
        (PROBLEM, "data", "tp2, step 10: rank 0 read samples 0 to 39"),
        (UNKNOWN, "switch", "1 rank: not reached"),
    ],
    "probe": [
        (PROBLEM, "probe", "dp2 -> tp2: rank"),
        (OK, "switch", "dp2 -> 1 rank: in place at step 10"),
    ],
    "twice": [
        (PROBLEM, "data", "tp2, step 10: rank 0 read samples 32 to 71, rank 1 read samples 32"),
        (UNKNOWN, "switch", "1 rank: not reached"),
        (OK, "switch", "dp2 -> tp2: in place"),
    ],
    "buffer": [
        (PROBLEM, "buffers", "dp2 -> tp2: ranks hold different values under the name 'model.seen'"),
        (PROBLEM, "buffers", "dp2 -> 1 rank: ranks hold different values"),
        (UNKNOWN, "probe", "no switch came as far"),
        (OK, "data", "at 3 save steps"),
    ],
    "build": [
        (PROBLEM, "switch", "IndexError: tuple index out of range ("),
        (OK, "switch", "dp2 -> 1 rank: in place at step 10"),
        (OK, "buffers", "at 2 save steps all ranks held the same"),
    ],
    "build refused": [
        (PROBLEM, "switch", "InputInvalid: layout: dp_shard = -1 must be a whole number"),
        (OK, "switch", "dp2 -> 1 rank: in place at step 10"),
    ],
    "probe raises": [
        (PROBLEM, "probe", "attach: the probe cannot be taken (KeyError: 'pp' ("),
        (OK, "switch", "dp2 -> 1 rank: in place at step 10"),
    ],
    "gradients": [
        (PROBLEM, "gradients", "nothing could be saved from step 5 on: gradients are live"),
        (UNKNOWN, "switch", "tp2: not reached"),
        (UNKNOWN, "data", "no save step came as far"),
    ],
    "unfit": [
        (
            PROBLEM,
            "state",
            "no switch of this run can be made: checkpoint: 'spare' is trainable but in",
        ),
        (UNKNOWN, "buffers", "not compared"),
    ],
    "unseekable": [
        (PROBLEM, "data", "tp2: not tried: the script says seekable=False"),
        (UNKNOWN, "references", "no layout was torn down"),
    ],
    "own save": [
        (UNKNOWN, "data", "does not say which samples it read in 1 rank, dp2, tp2"),
        (UNKNOWN, "save", "your own checkpointer (save=) was not called"),
        (OK, "switch", "tp2 -> 1 rank: in place"),
    ],
}
"""What is wrong with the script, and lines that are said of it, in their order."""


def walk(zygote: Zygote, folder: Path, fault: str) -> CheckedRun:
    """Walk the script with a fault to the end of its walk, by forked ranks."""
    place = CheckFolder(folder / "check")
    place.path.mkdir(parents=True)
    place.ask(LAYOUTS, 0)
    job = "documented" if fault in (DOCUMENTED, EARLY) else "main"
    real = folder / "real"
    environment = {"FAULT": fault, "REAL": str(real), VARIABLE: str(place.path)}
    launch = zygote.start(2, environment, folder, f"tests.attach.jobs.checked:{job}")
    status = zygote.wait(launch, PATIENCE_S)
    assert status == 0, [path.read_text() for path in folder.glob("*.log")]
    assert not real.exists()
    return CheckedRun(layouts=LAYOUTS, messages=tuple(place.messages()[0]))


def test_the_documented_script_is_all_well_and_each_twin_is_told_by_its_fault(
    zygote: Zygote, tmp_path: Path
) -> None:
    """One line for each thing that is wrong; what nobody could compare is unknown, not ok."""
    folders = {fault: tmp_path / str(number) for number, fault in enumerate(TWINS)}
    with ThreadPoolExecutor(2) as pool:
        seen = pool.map(lambda fault: walk(zygote, folders[fault], fault), TWINS)
        found = {fault: judge(each) for fault, each in zip(TWINS, seen, strict=True)}
    # A loss is logged where `session.leads`: of all ranks' lines each step is there once.
    logs = "\n".join(path.read_text() for path in sorted(folders[DOCUMENTED].glob("*.log")))
    steps = sorted(int(step) for step in re.findall(r"^(\d+) \d+\.\d+$", logs, re.MULTILINE))
    assert steps == list(range(1, 16))
    script = Path(checked.__file__)
    lines_of = script.read_text().splitlines()
    for fault, code, function in (
        ("build", "(WIDTH,)[layout.tp - 1]", "build"),
        ("build refused", "wattmesh.Layout(dp_shard=-1)", "build"),
        ("probe raises", '{"tp": 1}["pp"]', "probe"),
    ):
        (failed,) = (each for each in found[fault] if each.verdict is PROBLEM)
        at = lines_of.index(f"        {code}") + 1
        assert failed.where == f"{script}:{at}"
        assert "the log has the whole traceback" in failed.do
        assert "fixed batch" not in failed.do
        raised = [path.read_text() for path in sorted(folders[fault].glob("*.log"))]
        seen_in = [f'File "{script}", line {at}, in {function}' in each for each in raised]
        assert any(seen_in)
        if fault == "build":
            assert re.match(r"dp2 -> tp2: rank [01]: IndexError: tuple index out", failed.text)
            assert seen_in == [True, True]
    for fault, lines in TWINS.items():
        left = iter(found[fault])
        for verdict, check, text in lines:
            same = (
                each.verdict is verdict and each.check == check and text in each.text
                for each in left
            )
            assert any(same), (fault, verdict, check, text, found[fault])
        assert worst(found[fault]) is lines[0][0]
        assert all(bool(each.do) == (each.verdict is not OK) for each in found[fault])


def test_the_command_names_the_line_that_holds_the_old_model_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    """The real command and launcher; the user's own folder and daemon are never touched."""
    script = Path(checked.__file__)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ["attach-check", "--layouts", "tp2", "--json", "--scratch", str(scratch)]
    words += ["--log", str(tmp_path / "log"), "--", str(script)]
    environment = {**os.environ, "FAULT": "global", "REAL": str(tmp_path / "real")}
    environment |= {"WATTMESH_URL": f"unix://{tmp_path}/nobody.sock"}
    done = subprocess.run(
        [sys.executable, "-m", "wattmesh.controller.cli.main", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    held = told["findings"][0]
    shown = block("docs/attach.md", "Check your script", 2).splitlines()[1]
    assert pattern(held["text"]) in pattern(shown)
    kept = script.read_text().splitlines().index("KEPT: list[nn.Module] = []") + 1
    assert (held["check"], held["where"]) == ("references", f"{script}:{kept}")
    assert "goes by restart only" in held["do"]
    (switch,) = told["switches"]
    assert (switch["from"], switch["to"], switch["state"]) == ("dp2", "tp2", "rolled_back")
    assert switch["held_share"] > 0.05
    assert told["verdict"] == "problem"
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "real").exists()


def test_a_check_that_is_told_to_end_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    """By SIGTERM, as a scheduler sends it, while the script has a process in another session."""
    script, log, scratch = tmp_path / "train.py", tmp_path / "log", tmp_path / "scratch"
    scratch.mkdir()
    script.write_text(
        "import subprocess, time\n"
        "print('left', subprocess.Popen(['sleep', '600'], start_new_session=True).pid)\n"
        "time.sleep(600)\n"
    )
    words = ["attach-check", "--layouts", "1", "--scratch", str(scratch), "--log", str(log)]
    with subprocess.Popen(
        [sys.executable, "-m", "wattmesh.controller.cli.main", *words, "--", str(script)],
        stderr=subprocess.DEVNULL,
    ) as command:
        wait_for(lambda: log.exists() and "left" in log.read_text(), "the script", PATIENCE_S)
        left = int(log.read_text().partition("left ")[2].split()[0])
        try:
            command.terminate()
            assert command.wait(PATIENCE_S) == 128 + signal.SIGTERM
            assert list(scratch.iterdir()) == []
            assert not (stat := Path(f"/proc/{left}/stat")).exists() or ") Z " in stat.read_text()
        finally:
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)


def pattern(text: str) -> str:
    """What is left of a sentence without its numbers and paths."""
    return re.sub(r"\S*\.py|\d+", "*", text)


def test_a_variable_left_over_from_a_check_is_refused_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run never saves somewhere else than it was told to, unless a check is at work there."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(InputInvalid, match="unset the variable"):
        folder_of(tmp_path / "real")
    monkeypatch.delenv(VARIABLE)
    assert folder_of(tmp_path / "real").path == tmp_path / "real"
