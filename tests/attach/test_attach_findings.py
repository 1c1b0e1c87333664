"""What was told of a walk, judged; what could not be walked, and what is refused before."""

import ast
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hook.harness import until
from wattmesh.controller.attach_check.judge import HOOK_SENTENCES, CheckedRun, judge
from wattmesh.controller.attach_check.run import CheckRequest, check, hear
from wattmesh.controller.cli.doctor.findings import CheckStatus
from wattmesh.controller.cli.main import main
from wattmesh.controller.process.children import Children
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.hook.attach_check.check_folder import (
    Attached,
    CheckFolder,
    SaveStep,
    UnknownLoss,
)
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Finish, Message, Progress, Transition

DP2, TP2 = Layout(dp_shard=2), Layout(tp=2)
RUN = "6d1c9d0e-0000-4000-8000-000000000001"
WHO: dict[str, Any] = {"run": RUN, "incarnation": "i", "attempt": 1}

ATTACHED = Attached(
    layout=DP2, launched=2, boundary_every=100, steps_each=5, seekable=True, own_saves=False
)
SAVED = SaveStep(step=5, layout=DP2, ranks=2, told=40, deferred="", trouble="", for_good="")
DONE = Transition(
    **WHO,
    switch_id="walk-0",
    epoch=1,
    state=SwitchState.CONFIRMED,
    step=5,
    elapsed_s=0.5,
    layout=TP2,
    evidence={
        "held_share": 0.012,
        "probe_before": 2.0,
        "probe_after": 2.001,
        "probe_allowed": 8e-3,
        "probe_noise": 2e-3,
    },
)


def at(step: int, layout: Layout = DP2) -> Progress:
    """A report of one step."""
    return Progress(
        **WHO, seq=step, step=step, samples=8 * step, tokens=step, tokens_per_s=1.0, loss=None,
        layout=layout, ranks=(0, 1),
    )  # fmt: skip


def line(*told: Message, check: str, ended: str = "") -> tuple[CheckStatus, str]:
    """The first finding about something."""
    seen = CheckedRun(layouts=(TP2,), messages=(ATTACHED, at(5), *told), ended=ended)
    found = next(each for each in judge(seen) if each.check == check)
    return found.verdict, found.text


@pytest.mark.parametrize(
    ("told", "check", "verdict", "text"),
    [
        ((SAVED, DONE), "switch", "ok", "dp2 -> tp2: in place at step 5, in 0.50 s"),
        ((SAVED, DONE), "references", "ok", "at most 1.2% of a layout"),
        ((SAVED, DONE), "probe", "ok", "5.0e-04 (relative; dp2 -> tp2), allowed is 8.0e-03"),
        ((SAVED, DONE), "probe", "ok", "the noise measured is 2.0e-03"),
        ((SAVED, replace(DONE, evidence={})), "references", "unknown", "was not looked for"),
        ((SAVED, replace(DONE, evidence={})), "probe", "unknown", "no switch came as far"),
        # The end of a switch is told twice: once more at normal pace.
        ((SAVED, DONE, DONE), "references", "ok", "(1 of 1 switches)"),
        ((SAVED,), "switch", "unknown", "tp2: not reached; the last save step was 5"),
        ((replace(SAVED, told=0),), "data", "unknown", "which samples it read in dp2"),
        ((SAVED, replace(SAVED, layout=TP2, told=0)), "data", "unknown", "it read in tp2"),
        # A script that is done right after a switch was not seen to train in the last layout.
        ((SAVED, DONE), "data", "unknown", "no save step came as far as comparing samples in tp2"),
        ((SAVED, DONE), "buffers", "unknown", "no checkpoint of several ranks in tp2, so"),
        ((SAVED, DONE, replace(SAVED, layout=TP2)), "data", "ok", "at 2 save steps"),
        ((SAVED, DONE, replace(SAVED, layout=TP2)), "buffers", "ok", "at 2 save steps"),
        ((replace(SAVED, told=-1),), "data", "unknown", "no save step came as far"),
        ((replace(SAVED, ranks=1),), "buffers", "unknown", "what they hold was not compared"),
        ((SAVED, UnknownLoss(step=7, layout=DP2, loss="nan")), "loss", "problem",
         "dp2, step 7: the script reported the loss nan"),
        ((replace(SAVED, trouble="report: tokens = 1.5 is no whole number"),), "report", "problem",
         "dp2, step 5: report: tokens = 1.5"),
        ((replace(SAVED, trouble="the disk is full"),), "switch", "problem", "the disk is full"),
        ((replace(SAVED, trouble="the checkpoint of step 5 was not saved: no room"),), "switch",
         "problem", "dp2, step 5: no room"),
    ],
)  # fmt: skip
def test_each_finding_follows_from_what_was_told(
    told: tuple[Message, ...], check: str, verdict: str, text: str
) -> None:
    """Ok only where something was compared."""
    found, said = line(*told, check=check)
    assert (found.value, text in said) == (verdict, True), said


@pytest.mark.parametrize(
    ("detail", "do"),
    [
        ("rank 0: KeyError: 'x' (/s.py:7)", "mend that line of your script; the log has the whole"),
        ("no checkpoint: rank 0 could not write (KeyError (/s.py:7))", "that line of your script"),
        ("rank 0: KeyError: 'x'", "look at the log"),
        ("rank 1: InputInvalid: attach: the probe cannot be taken (KeyError: 'x' (/s.py:7))",
         "mend the error that the probe raises in this layout; the log has the whole traceback"),
        ("rank 1: attach: the probe gave nan", "compute the loss of one fixed batch"),
    ],
)  # fmt: skip
def test_a_traceback_is_promised_only_where_the_hook_logs_one(detail: str, do: str) -> None:
    """That is where a rank failed to come up in a layout, at a line of the user's script."""
    told = replace(DONE, state=SwitchState.ROLLED_BACK, detail=detail, evidence={})
    found = judge(CheckedRun(layouts=(TP2,), messages=(ATTACHED, at(5), SAVED, told)))
    (failed,) = (each for each in found if each.verdict is CheckStatus.PROBLEM)
    assert do in failed.do
    logged = "/s.py:7" in detail and not detail.startswith("no checkpoint")
    assert ("whole traceback" in failed.do) == logged


def test_the_words_that_sort_a_sentence_stand_in_the_hooks_sentences() -> None:
    """A sentence that was changed in the hook alone would be sorted as a failed switch."""
    room = Path(__file__).parents[2] / "reconfig"
    said = [
        each.value
        for path in room.rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    for words, _, _ in HOOK_SENTENCES:
        assert any(words in each for each in said), words


def test_one_cause_is_one_line_however_often_it_was_met() -> None:
    """At other steps the same sentence has other numbers."""
    told = [replace(SAVED, step=step, trouble=f"no room, {step} bytes") for step in (5, 10, 15)]
    found = judge(CheckedRun(layouts=(TP2,), messages=(ATTACHED, at(5), *told)))
    assert [each.text for each in found if "no room" in each.text] == [
        "dp2, step 5: no room, 5 bytes"
    ]


SAYS: list[tuple[str, tuple[Message, ...], str]] = [
    ("", (), "script.py ended without an error and never called wattmesh.attach: attach it first"),
    (
        "raise KeyError('up')",
        (),
        "script.py failed, before it called wattmesh.attach: KeyError: 'up'",
    ),
    (
        "raise SystemExit('two live launches')",
        (ATTACHED,),
        "failed, before its first session.report(): two live launches",
    ),
    (
        "class Full(Exception): ...\nraise Full('no room')",
        (ATTACHED, at(2)),
        "failed, after step 2 as dp2: Full: no room; its output",
    ),
    (
        # A module that is not there: what the launcher says behind it is no reason.
        "import sys\nsys.exit('No module named train\\nE1123 02:23:27.1 failed\\n'\n"
        "'Traceback (most recent call last):\\ntorch.distributed.elastic.Failed:\\n=====')",
        (),
        "failed, before it called wattmesh.attach: No module named train; its output",
    ),
    (
        # What ended the script comes after the traceback of a switch that was taken back.
        'import sys\nsys.exit(\'Traceback (most recent call last):\\n  File "/x/t.py", line 7\\n'
        "IndexError: 1\\nnot switched from dp2 to tp2: taken back at step 5\\nno room is left')",
        (ATTACHED, at(2)),
        "failed, after step 2 as dp2: no room is left; its output is in",
    ),
    (
        "raise KeyError",
        (replace(ATTACHED, launched=1),),
        "begins as dp2, which needs 2 ranks, and --nproc started 1; give --nproc 2;",
    ),
    (
        # A script that does not parse has no traceback, and its line all the same.
        "import sys\nsys.exit('  File \"/x/t.py\", line 7\\n    def f(:\\nSyntaxError: invalid')",
        (),
        "failed, before it called wattmesh.attach: SyntaxError: invalid (/x/t.py:7); its",
    ),
    (
        "import os\nos.abort()",
        (ATTACHED, at(2)),
        "failed, after step 2 as dp2: Fatal Python error: Aborted; its output",
    ),
    (
        # As torchrun says it of a rank that could not say a word itself.
        "import sys\nsys.exit('E1123 02:23:27.1 1 torch/api.py:988] failed (exitcode: -9) '\n"
        "'local_rank: 1 (pid: 7) of binary: python')",
        (ATTACHED, at(2)),
        "failed, after step 2 as dp2: rank 1 was ended by SIGKILL, which the kernel does when",
    ),
    ("", (ATTACHED, at(3)), "ended after step 3, before its first save step, 5: let it train"),
    (
        "",
        (ATTACHED, at(5)),
        "ended after step 5 and never called session.boundary() at a save step",
    ),
    ("wait()", (), "nothing was heard of script.py for 1 s (before it called wattmesh.attach)"),
    ("wait()", (ATTACHED, at(3)), "(after step 3 as dp2); if it is only slow, give a longer"),
    ("wait()", (ATTACHED, at(101)), "session.boundary() was not called at a save step in 101"),
]


@pytest.mark.parametrize(("code", "told", "sentence"), SAYS)
def test_a_script_that_cannot_be_walked_is_one_sentence_with_its_log(
    code: str, told: tuple[Message, ...], sentence: str, tmp_path: Path
) -> None:
    """A real process that ends, fails or hangs, after it told what it came to."""
    place, log = CheckFolder(tmp_path), tmp_path / "log"
    for each in told:
        place.tell(each)
    # Only what hangs is waited for briefly: on a busy machine a script may take long to end.
    asked = CheckRequest(
        script=("script.py",), layouts=(TP2,), nproc=2, steps_each=0,
        patience_s=1.0 if "wait()" in code else 600.0, log=log, scratch=None,
    )  # fmt: skip
    words = [sys.executable, "-c", f"import threading\nwait = threading.Event().wait\n{code}"]
    stacks = {"PYTHONFAULTHANDLER": "1"}
    with Children() as children, pytest.raises(InputInvalid) as refused:
        hear(children.start("script", words, log=log, environment=stacks), place, asked)
    assert sentence in str(refused.value)
    assert f"its output is in {log}" in str(refused.value)


def plainly(nproc: int, script: Sequence[str]) -> list[str]:
    """Start the script once, without torchrun."""
    assert nproc == 1
    return [sys.executable, *script]


def test_a_crash_leaves_no_process_and_no_endless_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the script had started outlives it in a session of its own, and ends with the check."""
    script, most = tmp_path / "train.py", 1000
    script.write_text(
        "import subprocess\n"
        f"print('early', *range({most}))\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "raise KeyError(f'child {child.pid}')\n"
    )
    monkeypatch.setattr("wattmesh.controller.attach_check.run.words_of", plainly)
    monkeypatch.setattr("wattmesh.controller.attach_check.run.MOST_LOG_BYTES", most)
    asked = CheckRequest(
        script=(str(script),), layouts=(Layout(),), nproc=1, steps_each=0, patience_s=60.0,
        log=tmp_path / "log", scratch=None,
    )  # fmt: skip
    with pytest.raises(InputInvalid, match=r"KeyError: 'child (\d+)'") as refused:
        check(asked)
    found = re.search(r"child (\d+)", str(refused.value))
    assert found is not None
    words = Path("/proc", found[1], "cmdline")
    until(lambda: not (words.exists() and b"sleep" in words.read_bytes()), "the child is gone")
    log = asked.log.read_text()
    assert log.startswith("[attach-check: older output was cut off here]\n")
    assert ("early" in log, len(log) < most) == (False, True)


def test_a_script_that_fails_after_its_walk_is_told_with_the_line(tmp_path: Path) -> None:
    """What uses the state behind the loop fails there; the walk itself counts."""
    place, script = CheckFolder(tmp_path), tmp_path / "train.py"
    script.write_text("def export():\n    raise RuntimeError('nothing to train')\n\nexport()\n")
    over = Finish(**WHO, step=10, tokens=10, reason="stopped: attach-check has seen enough")
    for each in (ATTACHED, at(5), SAVED, DONE, at(10, TP2), over):
        place.tell(each)
    asked = CheckRequest(
        script=(str(script),), layouts=(TP2,), nproc=2, steps_each=0, patience_s=60.0,
        log=tmp_path / "log", scratch=None,
    )  # fmt: skip
    with Children() as children:
        child = children.start("s", [sys.executable, str(script)], log=asked.log, environment={})
        first, *_ = judge(hear(child, place, asked))
    assert (first.check, first.verdict, first.where) == (
        "script",
        CheckStatus.PROBLEM,
        f"{script}:2",
    )
    assert "after its run had ended: RuntimeError: nothing to train" in first.text


REFUSED = {
    "--layouts dp2": "name your script behind --, as in wattmesh attach-check --layouts",
    "-- train.py": "give --layouts, as in wattmesh attach-check",
    "-- train.py --layouts dp2": "give --layouts before the --",
    "--layouts dp2,what -- train.py": "'what' is not understood; write its degrees",
    "--layouts dp2,, -- train.py": "'' is not understood",
    "--layouts dp2,dp2 -- train.py": "names dp2 twice in a row",
    "--layouts dp2tp64 -- train.py": "needs 128 ranks on this one machine; if you mean it, give",
    "--layouts dp2,tp4 --nproc 2 -- train.py": "layout tp4 needs 4 ranks, --nproc starts 2; give",
    "--layouts dp2,1 -- nowhere.py": "there is no script nowhere.py here",
    # Behind the two dashes it is the script's.
    "--layouts dp2,1 -- --debug": "there is no script --debug here",
}


@pytest.mark.parametrize("words", REFUSED)
def test_misuse_is_one_sentence_before_anything_is_started(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, and what to write instead."""
    assert main(["attach-check", *words.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert REFUSED[words] in said.err
    assert said.err.count("\n") == 1


DEGREE = st.integers(1, 9)


@given(st.builds(Layout, pp=DEGREE, dp_replicate=DEGREE, dp_shard=DEGREE, cp=DEGREE, tp=DEGREE))
def test_a_layout_is_read_as_it_is_shown(layout: Layout) -> None:
    """With spaces, and without."""
    assert Layout.from_text(str(layout)) == layout
    assert Layout.from_text(str(layout).replace(" ", "").replace("1rank", "1")) == layout


@pytest.mark.parametrize("text", ["", "2", "dp", "dpx2", "dp2dp4", "2dp", "dp-2", "tp0", "dp2;tp2"])
def test_nonsense_is_no_layout(text: str) -> None:
    """Nor is half of one."""
    with pytest.raises(InputInvalid):
        Layout.from_text(text)
