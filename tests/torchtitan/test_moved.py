"""torchtitan's own Trainer through layouts: the losses of the same script without us."""

import ast
import json
from pathlib import Path

import pytest

from tests.docs.blocks import block, patched
from tests.docs.page_run import PageRun, worst
from tests.hook.harness import Zygote

JOB = "tests.torchtitan.moved"
PAGE, HEADING = "docs/trainers.md", "torchtitan"
ROUNDED = 2e-6
"""In fp32, sums in another order. Measured: 1e-7."""


@pytest.fixture(scope="module")
def ranks(zygote: Zygote) -> Zygote:
    """Forks ranks that need not import torchtitan, each for itself."""
    zygote.load("tests.torchtitan.moved")
    return zygote


@pytest.fixture(scope="module")
def alone(ranks: Zygote, tmp_path_factory: pytest.TempPathFactory) -> PageRun:
    """The script as it is without us, in one process: four microbatches of each step."""
    run = PageRun(ranks, JOB, tmp_path_factory.mktemp("alone"), 1)
    assert run.once("plain") == 0, run.log()
    return run


def test_the_trainer_goes_through_three_layouts_is_killed_and_trains_what_it_would_alone(
    ranks: Zygote, alone: PageRun, tmp_path: Path
) -> None:
    """Its loader, accumulation, schedule, clipping and an average of a user's own go with it."""
    run = PageRun(
        ranks,
        JOB,
        tmp_path,
        4,
        LAYOUT="dp2 tp2",
        turns=[[1, "rep2"], [3, "dp2"]],
        KILL="1",
    )
    assert run.supervised() == 0, run.log()
    assert run.layouts() == ["dp2 tp2", "rep2", "rep2", "dp2"], run.log()
    assert any("launching again from step 2" in line for line in run.said), run.said
    assert worst(run.losses(), alone.losses()) <= ROUNDED
    (average,) = alone.averages()
    assert run.averages() == pytest.approx([average] * 2, rel=ROUNDED)
    ends = json.loads((run.out / "switches.json").read_text())
    assert ends == [[3, "confirmed", ""]]


def test_a_loader_that_forgets_its_place_is_seen_by_its_losses(
    ranks: Zygote, alone: PageRun, tmp_path: Path
) -> None:
    """The sabotaged twin: after the switch the first samples are read again."""
    run = PageRun(ranks, JOB, tmp_path, 2, LAYOUT="tp2", turns=[[1, "1"]], STEPS="2", SPOIL="yes")
    assert run.once() == 0, run.log()
    found, wanted = run.losses(), alone.losses()
    assert abs(found[1] / wanted[1] - 1) <= ROUNDED
    assert abs(found[2] / wanted[2] - 1) > ROUNDED


@pytest.mark.parametrize("why", [{"STOPS": "2"}, {"ENDS": "20"}])
def test_it_ends_where_torchtitan_s_own_loop_ends(
    ranks: Zygote, tmp_path: Path, why: dict[str, str]
) -> None:
    """By `should_continue_training`, or with the data: once, as a run that is finished."""
    run = PageRun(ranks, JOB, tmp_path / "moved", 2, LAYOUT="tp2", **why)
    assert run.supervised() == 0, run.log()
    assert run.said == ["the run is finished: 128 tokens trained."]
    alone = PageRun(ranks, JOB, tmp_path / "alone", 1, **why)
    assert alone.once("plain") == 0, alone.log()
    assert worst(run.losses(), alone.losses()) <= ROUNDED
    assert sorted(run.losses()) == [1, 2]


def test_three_statements_are_added() -> None:
    """However many lines they replace."""
    before = block(PAGE, HEADING)
    after = patched(before, block(PAGE, HEADING, 2))
    old = {ast.unparse(node) for node in ast.parse(before).body}
    added = [node for node in ast.walk(ast.parse(after)) if isinstance(node, ast.stmt)]
    names = [type(node).__name__ for node in added if ast.unparse(node) not in old]
    assert names == ["ImportFrom", "With", "Expr"]
