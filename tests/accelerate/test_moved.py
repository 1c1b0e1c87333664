"""An Accelerate script through layouts: the losses of the same script without us."""

import ast
import json
import re
from pathlib import Path

import pytest

from tests.accelerate.moved import HEADING, PAGE, script
from tests.docs.blocks import block
from tests.docs.page_run import PageRun, worst
from tests.hook.harness import Zygote

JOB = "tests.accelerate.moved"
ROUNDED = 2e-6
"""In fp32, sums in another order. Measured: 1e-7."""


BF16 = 5e-3
"""The loss itself comes in bf16 then. Measured: 2e-3; a step of other samples is 6e-2 off."""


@pytest.fixture(scope="module")
def ranks(zygote: Zygote) -> Zygote:
    """Forks ranks that need not import Accelerate, each for itself."""
    zygote.load(JOB)
    return zygote


@pytest.fixture(scope="module")
def alone(ranks: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The script as it is without us, in one process; five microbatches are three steps."""
    run = PageRun(ranks, JOB, tmp_path_factory.mktemp("alone"), 1)
    assert run.once("plain") == 0, run.log()
    found = [float(loss) for loss in re.findall(r"^loss (\S+)$", run.log(), re.M)]
    steps = [found[:2], found[2:4], found[4:5], found[5:7]]
    return {step: sum(each) / len(each) for step, each in enumerate(steps, start=1)}


@pytest.fixture(scope="module")
def moved(ranks: Zygote, tmp_path_factory: pytest.TempPathFactory) -> PageRun:
    """dp4, rep2 dp2, killed there in the last microbatch of an epoch, and on to two ranks."""
    run = PageRun(
        ranks,
        JOB,
        tmp_path_factory.mktemp("moved"),
        4,
        LAYOUT="dp4",
        turns=[[1, "rep2 dp2"], [3, "dp2"]],
        KILL="1",
    )
    assert run.supervised() == 0, run.log()
    return run


def test_a_script_goes_through_three_layouts_is_killed_and_trains_what_it_would_alone(
    moved: PageRun, alone: dict[int, float]
) -> None:
    """Its shuffled data over the border of an epoch, accumulation, schedule and clipping."""
    assert moved.layouts() == ["dp4", "rep2 dp2", "rep2 dp2", "dp2"], moved.log()
    assert any("launching again from step 2" in line for line in moved.said), moved.said
    assert worst(moved.losses(), alone) <= ROUNDED
    assert json.loads((moved.out / "switches.json").read_text()) == [[3, "confirmed", ""]]


def test_a_step_at_the_end_of_an_epoch_counts_the_samples_that_it_has(moved: PageRun) -> None:
    """A window of accumulation that the epoch cuts short: four samples where others have eight."""
    lines = (moved.out / "steps-0.jsonl").read_text().splitlines()
    counted = {line["step"]: line["samples"] for line in map(json.loads, lines)}
    assert counted == {1: 8, 2: 16, 3: 20, 4: 28}


def test_the_finished_run_does_not_go_on_with_other_data(moved: PageRun, ranks: Zygote) -> None:
    """Another number of samples: one sentence, and nothing is trained."""
    moved.environment.update(SAMPLES="24", STEPS="8", KILL="", TURNS="[]", LAYOUT="dp2")
    moved.nproc = 2
    before = moved.losses()
    assert moved.once() != 0
    assert "the run's data had samples = 20, now it is 24" in moved.log()
    assert moved.losses() == before


def test_mixed_precision_is_moved_and_a_loader_that_begins_anew_is_seen(
    ranks: Zygote, alone: dict[int, float], tmp_path: Path
) -> None:
    """Products in bf16 of fp32 parameters. The sabotaged twin: step 3 reads the first samples."""
    run = PageRun(
        ranks,
        JOB,
        tmp_path,
        2,
        LAYOUT="dp2",
        turns=[[1, "1"], [2, "dp2"]],
        STEPS="3",
        MIXED="yes",
        SPOIL="yes",
    )
    assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "1 rank", "dp2"], run.log()
    off = {step: abs(loss / alone[step] - 1) for step, loss in run.losses().items()}
    assert 0 < max(off[1], off[2]) <= BF16
    assert off[3] > BF16


def test_three_statements_are_added() -> None:
    """However many lines the longest of them is written in."""
    old = {ast.unparse(node) for node in _statements(block(PAGE, HEADING))}
    added = [node for node in _statements(script()) if ast.unparse(node) not in old]
    names = [type(node).__name__ for node in added if not isinstance(node, ast.FunctionDef)]
    assert sorted(names) == ["Assign", "Expr", "For", "ImportFrom"]  # Expr: what is printed


def _statements(text: str) -> list[ast.stmt]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
