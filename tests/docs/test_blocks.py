"""Every fenced block of the pages that a stranger follows is run, or read by who would read it.

The table names each block. What is long, or needs ranks, is held by a test elsewhere, which the
table names too; a block in no line of it, or a line without its block, fails.
"""

import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from tests.docs.blocks import REPOSITORY, blocks
from tests.docs.test_held import missing
from wattmesh.controller.attach_check.judge import CheckedRun, judge
from wattmesh.controller.cli.doctor.doctor import screen
from wattmesh.controller.cli.tree import whole
from wattmesh.integrations.carbon.reading.fuel_mix import DIRECT_G_PER_KWH, Mix, derived
from wattmesh.integrations.carbon.reading.trace import FORECAST, GASES, KINDS, NEEDED, load
from wattmesh.reconfig.hook.attach_check.check_folder import Attached, SaveStep
from wattmesh.reconfig.hook.reports import switch_line
from wattmesh.reconfig.launch.generation import Generation, Purpose, SwitchNote
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import Progress, Transition

README, ATTACH, OBSERVE = "README.md", "docs/attach.md", "docs/observe.md"
INSTALL, CARBON = "docs/install.md", "docs/carbon-signals.md"
HUGGINGFACE = "docs/huggingface.md"
TRAINERS = "docs/trainers.md"
PAGES = (README, ATTACH, OBSERVE, INSTALL, CARBON, HUGGINGFACE, TRAINERS)


@dataclass(frozen=True, slots=True)
class HeldBy:
    """A block that another test runs; `job`: the file in which that test's block is named."""

    test: str
    job: str = ""


def typed(line: str) -> None:
    """Let the real command tree read a line, and do nothing."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(whole())
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not getattr(command, "commands", {}), f"{line}: no such command"
    command.make_context(command.name, words)


def makes(line: str) -> None:
    """Let make say what it would do."""
    words = shlex.split(line, comments=True)
    subprocess.run([*words, "--dry-run"], cwd=REPOSITORY, check=True, capture_output=True)


def installs(line: str) -> None:
    """A package of ours, with parts that it has."""
    name, _, extra = shlex.split(line)[-1].partition("[")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert name == project["name"]
    assert not extra or extra.removesuffix("]") in project["optional-dependencies"]


def exports(line: str) -> None:
    """A variable that the hook understands."""
    name, _, value = line.removeprefix("export ").partition("=")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        assert name == "WATTMESH_URL"
        assert DaemonLink.from_environment() is not None


LINES: dict[str, Callable[[str], None]] = {
    "make ": makes,
    "pip install ": installs,
    "export ": exports,
    "wattmesh ": typed,
    # The reader's own script, beside whose lines the block stands.
    "python train.py": lambda line: None,
    # Run with its words by the test that the table names.
    "python -m wattmesh.integrations.torchrun ": lambda line: None,
}
"""How the lines of a shell begin, and who reads them."""


def shell(text: str) -> None:
    """Read every line; one that nobody reads fails."""
    for line in text.splitlines():
        reader = next((read for begin, read in LINES.items() if line.startswith(begin)), None)
        assert reader is not None, f"{line}: who reads it?"
        reader(line)


def aligned(text: str) -> None:
    """A list of commands, each with what it does."""
    for line in text.splitlines():
        typed(re.sub(r" {2,}.*| \[\w+\]", "", line))


def observed(text: str) -> None:
    """The page's two lines in a script: without a daemon it trains on and says what is unknown."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "WATTMESH_URL": "unix:///nowhere/w.sock"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line.split(" ", 4)[:4] for line in lines] == [
        [str(step), "None", "None", "()"] for step in range(3)
    ]
    assert all("daemon" in line for line in lines)
    assert len(done.stderr.splitlines()) == 1


def tracked(text: str) -> None:
    """The page's tracker in a script: without a daemon it trains on, and no figure is written."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "WATTMESH_URL": "unix:///nowhere/w.sock"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        (events,) = Path(folder).glob("runs/*/events.*")
        assert b"wattmesh" not in events.read_bytes()
    assert done.stderr.count("energy and grams of") == 1


def checked(text: str) -> None:
    """What `attach-check` prints of a script that keeps its model, and says no samples."""
    dp2, tp2 = Layout(dp_shard=2), Layout(tp=2)
    who: dict[str, Any] = {"run": "r", "incarnation": "i", "attempt": 1}
    saved = SaveStep(step=5, layout=dp2, ranks=2, told=0, deferred="", trouble="", for_good="")
    progress = Progress(
        **who, seq=5, step=5, samples=40, tokens=5, tokens_per_s=1.0, loss=None, layout=dp2,
        ranks=(0, 1),
    )  # fmt: skip
    held = re.search(r"dp2 -> tp2: (.*\)) ->", text)
    assert held is not None
    # The sentence itself is held by the test of the real command, in tests/attach.
    taken_back = Transition(
        **who, switch_id="walk-0", epoch=1, state=SwitchState.ROLLED_BACK, step=5, elapsed_s=0.5,
        layout=dp2, detail=held[1],
    )  # fmt: skip
    told = (
        Attached(
            layout=dp2, launched=2, boundary_every=100, steps_each=5, seekable=True, own_saves=False
        ),
        progress,
        saved,
        taken_back,
        saved,
        replace(saved, layout=tp2),
    )
    lines = [
        line.plain.rstrip() for line in screen(judge(CheckedRun(layouts=(tp2,), messages=told)))
    ]
    assert text.splitlines() == [line for line in lines if not line.startswith("probe")]


def switched(text: str) -> None:
    """The line as the hook writes it, of what it says itself."""
    said = re.fullmatch(
        r"switched from (?P<old>.+) to (?P<new>.+) in place at step (?P<step>\d+) in (?P<s>\S+) "
        r"s\. Why: (?P<why>.+)\. Proof: .*\n",
        text,
    )
    assert said is not None
    old, new = Layout.from_text(said["old"]), Layout.from_text(said["new"])
    note = SwitchNote(
        switch_id="p", epoch=1, point="B", old_layout=old, old_ranks=(0, 1), began_s=0.0, boot="b",
        to=said["new"], reason=said["why"] + ".",
        evidence={
            "digest_before": "d", "digest_after": "d",
            "probe_before": 1.0, "probe_after": 1.0 + 3e-7, "probe_allowed": 4e-6,
        },
    )  # fmt: skip
    generation = Generation(
        number=2, purpose=Purpose.SWITCH, run="r", incarnation="i", attempt=1, layout=new,
        ranks=(0, 1), step=int(said["step"]), switch=note,
    )  # fmt: skip
    assert switch_line.arrived(generation, float(said["s"]), by_restart=False) + "\n" == text


def recorded(text: str) -> None:
    """A recording that is read as one; the table behind it names all columns and words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grid.csv"
        path.write_text(text)
        trace = load(path)
    assert [row.g_per_kwh for row in trace.rows] == [187.0, None, 192.5]
    assert [row.forecast_g_per_kwh for row in trace.rows] == [203.0, 201.0, None]
    page = (REPOSITORY / CARBON).read_text("utf-8").partition(text)[2]
    for word in (*NEEDED, FORECAST, *KINDS, *GASES):
        assert f"`{word}`" in page


def reckoned(text: str) -> None:
    """The formula gives what the provider gives."""
    energy, factors = {"COL": 120.0, "NG": 300.0, "SUN": 80.0}, DIRECT_G_PER_KWH
    names: dict[str, Any] = {"energy_f": np.array([*energy.values()]), "sum": np.sum}
    names["factor_f"] = np.array([factors[fuel] for fuel in energy])
    exec(text, names)
    found = derived(Mix(energy_mwh=energy, most_mwh={}), factors).g_per_kwh
    assert names["intensity"] == pytest.approx(found)


SHORT, CHECK = "Attach a training job", "Check your script"
SAVE, TRACK = "Your own checkpointer", "An experiment tracker"
DOCUMENTED = "tests/attach/test_documented.py"
OWN = "test_an_own_checkpointer_and_a_tracker_are_written_as_the_page_has_them"
WALKED = "test_the_documented_script_is_all_well_and_each_twin_is_told_by_its_fault"
LAUNCHED = "test_the_real_launcher_recovers_a_killed_rank"
HOSTS = "test_the_lines_of_the_page_are_two_hosts_of_one_run"
ZERO = "test_the_documented_lines_leave_and_go_on"
SIGNALS = HeldBy("tests/carbon/test_sources.py::test_examples_of_the_manual_are_settings")
NODE = "tests/docs/test_install.py::test_a_{}_node_is_made_upgraded_and_removed_as_the_page_says"
FACE = HeldBy(
    "tests/huggingface/test_documented.py::"
    "test_the_script_with_the_lines_trains_what_it_trains_without",
    "tests/huggingface/documented.py",
)
ALONE = "is_killed_and_trains_what_it_would_alone"
TITAN = HeldBy(
    f"tests/torchtitan/test_moved.py::test_the_trainer_goes_through_three_layouts_{ALONE}",
    "tests/torchtitan/moved.py",
)
ACCELERATE = HeldBy(
    f"tests/accelerate/test_moved.py::test_a_script_goes_through_three_layouts_{ALONE}",
    "tests/accelerate/moved.py",
)
HF_TRAINER = HeldBy(
    f"tests/hf_trainer/test_moved.py::test_a_script_goes_through_three_layouts_{ALONE}",
    "tests/hf_trainer/page.py",
)
LIGHTNING = HeldBy(
    f"tests/lightning/test_moved.py::test_a_script_goes_through_three_layouts_{ALONE}",
    "tests/lightning/page.py",
)
ON_HEAD, ON_GPU = HeldBy(NODE.format("head")), HeldBy(NODE.format("gpu"))

TABLE: dict[tuple[str, str, int], Callable[[str], None] | HeldBy] = {
    (README, "wattmesh", 1): shell,
    (ATTACH, SHORT, 1): HeldBy(
        f"{DOCUMENTED}::test_the_short_script_trains_to_its_end", "tests/attach/jobs/documented.py"
    ),
    (ATTACH, SHORT, 2): HeldBy(f"tests/hook/launches/test_restart.py::{LAUNCHED}"),
    (ATTACH, CHECK, 1): shell,
    (ATTACH, CHECK, 2): checked,
    (ATTACH, "A whole script", 1): HeldBy(
        f"tests/attach/test_attach_check.py::{WALKED}", "tests/attach/jobs/checked.py"
    ),
    (ATTACH, "What happens at a boundary", 1): switched,
    (ATTACH, "Several hosts", 1): HeldBy(f"tests/hosts/test_moved.py::{HOSTS}"),
    (ATTACH, SAVE, 1): HeldBy(f"{DOCUMENTED}::{OWN}", "tests/attach/jobs/documented.py"),
    (ATTACH, TRACK, 1): HeldBy(f"{DOCUMENTED}::{OWN}", "tests/attach/jobs/documented.py"),
    (ATTACH, "DeepSpeed", 1): HeldBy(f"tests/zero/test_restart.py::{ZERO}", "tests/zero/job.py"),
    (HUGGINGFACE, "A script", 1): FACE,
    (HUGGINGFACE, "A script", 2): FACE,
    (TRAINERS, "torchtitan", 1): TITAN,
    (TRAINERS, "torchtitan", 2): TITAN,
    (TRAINERS, "Accelerate", 1): ACCELERATE,
    (TRAINERS, "Accelerate", 2): ACCELERATE,
    (TRAINERS, "Hugging Face Trainer", 1): HF_TRAINER,
    (TRAINERS, "Hugging Face Trainer", 2): HF_TRAINER,
    (TRAINERS, "Lightning", 1): LIGHTNING,
    (TRAINERS, "Lightning", 2): LIGHTNING,
    (OBSERVE, "Observe a script", 1): observed,
    (OBSERVE, "Observe a script", 2): shell,
    (OBSERVE, "In your experiment tracker", 1): tracked,
    (INSTALL, "Head node", 1): ON_HEAD,
    (INSTALL, "Head node", 2): ON_HEAD,
    (INSTALL, "GPU node", 1): ON_GPU,
    (INSTALL, "GPU node", 2): ON_GPU,
    (INSTALL, "Your shell", 1): ON_HEAD,
    (INSTALL, "Upgrade", 1): ON_HEAD,
    (INSTALL, "Upgrade", 2): ON_GPU,
    (INSTALL, "Remove", 1): ON_GPU,
    (INSTALL, "Remove", 2): ON_HEAD,
    (INSTALL, "Remove", 3): ON_HEAD,
    (CARBON, "Carbon signals", 1): aligned,
    (CARBON, "`neso`: Great Britain", 1): SIGNALS,
    (CARBON, "`electricity_maps`", 1): SIGNALS,
    (CARBON, "`watttime`", 1): SIGNALS,
    (CARBON, "`eia930`: the United States", 1): SIGNALS,
    (CARBON, "`eia930`: the United States", 2): reckoned,
    (CARBON, "`entsoe`: Europe", 1): SIGNALS,
    (CARBON, "`open_electricity`: Australia", 1): SIGNALS,
    (CARBON, "`static`: a number of yours", 1): SIGNALS,
    (CARBON, "`http_json`: any other service", 1): SIGNALS,
    (CARBON, "`csv`: a recording", 1): SIGNALS,
    (CARBON, "`csv`: a recording", 2): recorded,
}
"""By page, heading, and number under it."""

FOUND = {(each.page, each.heading, each.number): each for page in PAGES for each in blocks(page)}


def test_every_block_is_in_the_table_and_every_line_of_it_has_its_block() -> None:
    """A block that nobody runs fails here, and so does a line whose block is gone."""
    assert sorted(FOUND) == sorted(TABLE)


@pytest.mark.parametrize("key", TABLE, ids=lambda key: f"{key[0]}-{key[1]}-{key[2]}")
def test_the_block_is_run(key: tuple[str, str, int]) -> None:
    """By its reader here; or by a test that exists, and that names the block or reads all."""
    page, heading, _ = key
    run = TABLE[key]
    if not isinstance(run, HeldBy):
        run(FOUND[key].text)
        return
    assert missing(f"`{run.test}`") == []
    files = {run.test.partition("::")[0], run.job} - {""}
    text = "".join((REPOSITORY / file).read_text("utf-8") for file in files)
    assert Path(page).name in text
    assert f'"{heading}"' in text or "findall" in text


SPOILT: dict[tuple[str, str, int], tuple[str, str]] = {
    (README, "wattmesh", 1): ("make demo", "make dema"),
    (ATTACH, CHECK, 1): ("--layouts", "--layout-list"),
    (ATTACH, CHECK, 2): ("so samples read twice", "thus samples read twice"),
    (ATTACH, "What happens at a boundary", 1): ("2 ranks hold", "2 ranks have"),
    (OBSERVE, "Observe a script", 1): ("run.carbon_g", "run.grams"),
    (OBSERVE, "Observe a script", 2): ("WATTMESH_URL=unix:", "WATTMESH_URL=http:"),
    (OBSERVE, "In your experiment tracker", 1): ("energy(step)", "energy(step"),
    (CARBON, "Carbon signals", 1): ("carbon now", "carbon today"),
    (CARBON, "`eia930`: the United States", 2): ("/ sum(energy_f)", "/ sum(factor_f)"),
    (CARBON, "`csv`: a recording", 2): ("203", "2o3"),
}


@pytest.mark.parametrize("key", SPOILT, ids=lambda key: f"{key[0]}-{key[1]}-{key[2]}")
def test_a_spoilt_block_would_be_seen(key: tuple[str, str, int]) -> None:
    """The sabotaged twin of every reader in the table."""
    run, (good, bad) = TABLE[key], SPOILT[key]
    assert not isinstance(run, HeldBy)
    assert good in FOUND[key].text
    # Also the exit of a command line that does not understand.
    with pytest.raises((Exception, SystemExit)):
        run(FOUND[key].text.replace(good, bad))


def test_each_reader_has_a_twin() -> None:
    """None was left out above, and the same reader needs one twin for each of its kinds of line."""
    readers = {run for run in TABLE.values() if not isinstance(run, HeldBy)}
    assert {TABLE[key] for key in SPOILT} == readers


NAME = re.compile(r"[A-Z]+(?:_[A-Z]+)+|RANK")
READ = re.compile(r"""environ(?:ment)?(?:\.get\(|\[)"(\w+)\"""")


def variables(source: str) -> set[str]:
    """Name the environment variables that stand in a module: names in capitals, and what is read.

    What a module gives away (`__all__`), or compares a value with, is no variable.
    """
    nodes = list(ast.walk(ast.parse(source)))
    others = [
        each
        for node in nodes
        if isinstance(node, ast.Compare)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        for each in ast.walk(node)
    ]
    words = {_text(each) for each in nodes} - {_text(each) for each in others}
    return {word for word in words if NAME.fullmatch(word)} | {*READ.findall(source)}


def _text(node: ast.AST) -> str:
    """Give a constant's text; "" of anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_the_page_s_environment_variables_are_those_that_the_code_reads() -> None:
    """The hook's, its supervisor's and its adapters': none is missing, and none is made up."""
    files = [*(REPOSITORY / "reconfig").rglob("*.py"), *(REPOSITORY / "integrations").glob("*.py")]
    read = set().union(*(variables(each.read_text("utf-8")) for each in files))
    page = (REPOSITORY / ATTACH).read_text("utf-8")
    table = page.partition("### Environment variables")[2].partition("\n## ")[0]
    firsts = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert read == {name for first in firsts for name in re.findall(r"`(\w+)`", first)}


def test_a_variable_that_is_read_would_be_seen() -> None:
    """The sabotaged twins: by its name, and by how it is read."""
    assert variables('X = "SOME_HOST"') == {"SOME_HOST"}
    assert variables('x = os.environ.get("HOME")') == {"HOME"}
    assert variables('x = environment["HOME"]') == {"HOME"}
    assert variables('__all__ = ["SOME_HOST"]') == set()
