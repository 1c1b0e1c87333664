"""A Trainer script through layouts: the losses of the same script without us."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import block
from tests.docs.page_run import PageRun, worst
from tests.hf_trainer.page import HEADING, PAGE, script
from tests.hook.harness import Zygote

JOB = "tests.hf_trainer.moved"
ROUNDED = 2e-6
"""In fp32, sums in another order. Measured: 1e-7."""

BF16 = 5e-3
"""Products in bf16 of fp32 parameters. Measured: 2e-3; a step of other samples is 2.5e-2 off."""


@pytest.fixture(scope="module")
def ranks(zygote: Zygote) -> Zygote:
    """Forks ranks that need not import transformers, each for itself."""
    zygote.load(JOB)
    return zygote


@pytest.fixture(scope="module")
def alone(ranks: Zygote, tmp_path_factory: pytest.TempPathFactory) -> PageRun:
    """The script as it is without us, in one process."""
    run = PageRun(ranks, JOB, tmp_path_factory.mktemp("alone"), 1)
    assert run.once("plain") == 0, run.log()
    return run


@pytest.fixture(scope="module")
def moved(ranks: Zygote, tmp_path_factory: pytest.TempPathFactory) -> PageRun:
    """Through three layouts, killed in the second at the last step of an epoch."""
    run = PageRun(
        ranks,
        JOB,
        tmp_path_factory.mktemp("moved"),
        4,
        LAYOUT="dp4",
        turns=[[1, "rep2 dp2"], [3, "dp2"], [4, "dp4"]],
        KILL="1 at 3",
    )
    assert run.supervised() == 0, run.log()
    return run


def test_a_script_goes_through_three_layouts_is_killed_and_trains_what_it_would_alone(
    moved: PageRun, alone: PageRun
) -> None:
    """Its shuffled data over the border of an epoch, accumulation, schedule and clipping."""
    layouts = ["dp4", "rep2 dp2", "rep2 dp2", "dp2", "dp4", "dp4"]
    assert moved.layouts() == layouts, moved.log()
    assert any("launching again from step 2" in line for line in moved.said), moved.said
    assert worst(moved.losses(), alone.losses()) <= ROUNDED
    switches = json.loads((moved.out / "switches.json").read_text())
    assert switches == [[3, "confirmed", ""], [4, "confirmed", ""]]


def test_what_trainer_logs_does_not_depend_on_layouts(moved: PageRun, alone: PageRun) -> None:
    """Rates of its schedule, epochs, evaluations, sums, and the average of the parameters."""
    found, wanted = _lines(moved), _lines(alone)
    for what in ("learning_rate", "epoch", "total_flos", "counted"):
        assert found[what] == wanted[what], what
    for what in ("grad_norm", "eval_loss", "train_loss", "ema"):
        assert worst(found[what], wanted[what]) <= ROUNDED, what


def test_the_history_of_logs_and_what_callbacks_hold_is_carried(moved: PageRun) -> None:
    """All six losses are there at the end, on every rank, and a callback has counted six steps."""
    for path in moved.out.glob("other-*.jsonl"):
        last = json.loads(path.read_text().splitlines()[-1])
        assert (last["step"], last["counted"], len(last["logged"])) == (6, 6, 6)


def test_what_follows_training_is_done_while_the_ranks_are_there(
    moved: PageRun, alone: PageRun
) -> None:
    """`train(session, then)`: another evaluation, of the same model, on every rank."""
    found = [json.loads(each.read_text())["eval_loss"] for each in moved.out.glob("then-*.json")]
    assert len(found) == 4
    wanted = _lines(alone)["eval_loss"][6]
    assert max(abs(each / wanted - 1) for each in found) <= ROUNDED


def test_mixed_precision_is_moved_and_data_that_begin_anew_are_seen(
    ranks: Zygote, alone: PageRun, tmp_path: Path
) -> None:
    """Products in bf16. The sabotaged twin: step 3 reads the first samples."""
    run = PageRun(
        ranks,
        JOB,
        tmp_path,
        2,
        LAYOUT="dp2",
        turns=[[1, "1"], [2, "dp2"]],
        SPOIL="yes",
        REPLACED=json.dumps([["num_train_epochs=2,", "max_steps=3, bf16=True, use_cpu=True,"]]),
    )
    assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "1 rank", "dp2"], run.log()
    off = {step: abs(loss / alone.losses()[step] - 1) for step, loss in run.losses().items()}
    assert 0 < max(off[1], off[2]) <= BF16
    assert off[3] > BF16, off


def test_a_loss_that_depends_on_the_step_is_moved(ranks: Zygote, tmp_path: Path) -> None:
    """The probe is taken where the run stands, before and after: else no switch could be proven."""
    own = "return type('Own', (Annealed, Noted), {})("
    changed = json.dumps([["return Noted(", own]])
    alone = PageRun(ranks, JOB, tmp_path / "alone", 1, REPLACED=changed)
    assert alone.once("plain") == 0, alone.log()
    turns = [[2, "1"], [3, "dp2"]]
    run = PageRun(ranks, JOB, tmp_path / "moved", 2, LAYOUT="dp2", turns=turns, REPLACED=changed)
    assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "dp2", "1 rank", "dp2", "dp2", "dp2"], run.log()
    assert worst(run.losses(), alone.losses()) <= ROUNDED


def test_a_run_under_ddp_that_is_killed_draws_what_it_would_have_drawn(
    ranks: Zygote, tmp_path: Path
) -> None:
    """Dropout, and losses that are logged at every second step: as without us, to the last bit.

    It goes on from a step that was not logged, and ends at one that is no save step. Trainer's own
    saves are made beside the session's.
    """
    changed = [
        ["fsdp=True,", "max_steps=5,"],
        ['save_strategy="no"', 'save_strategy="steps", save_steps=2'],
        ["logging_steps=1", "logging_steps=2"],
        ["tie_word_embeddings=False", "attention_dropout=0.3"],
    ]
    told = {"KILL": "1 at 4", "LAYOUT": "rep2"}
    alone = PageRun(ranks, JOB, tmp_path / "alone", 2, REPLACED=json.dumps(changed))
    assert alone.once("plain_ranks") == 0, alone.log()
    changed.append(["boundary_every=1", "boundary_every=3"])
    run = PageRun(ranks, JOB, tmp_path / "moved", 2, REPLACED=json.dumps(changed), **told)
    assert run.supervised() == 0, run.log()
    assert any("launching again from step 3" in line for line in run.said), run.said
    assert run.losses() == alone.losses()
    # Of steps that were not logged, Trainer alone counts what each rank has seen itself.
    each = [_lines(alone, rank)["train_loss"][5] for rank in range(2)]
    assert abs(_lines(run)["train_loss"][5] / (sum(each) / 2) - 1) <= ROUNDED
    assert (run.out / "trainer" / "checkpoint-4" / "trainer_state.json").exists()
    logged = (run.out / "steps-0.jsonl").read_text()
    assert run.once() == 0, run.log()
    assert (run.out / "steps-0.jsonl").read_text() == logged, "what was finished was trained again"


def test_a_run_under_ddp_that_is_killed_in_an_epoch_draws_what_it_would_have_drawn(
    ranks: Zygote, tmp_path: Path
) -> None:
    """Beginning anew in an epoch draws a seed for the loader, which is undone: to the last bit."""
    changed = json.dumps(
        [["fsdp=True,", "max_steps=3,"], ["tie_word_embeddings=False", "attention_dropout=0.3"]]
    )
    alone = PageRun(ranks, JOB, tmp_path / "alone", 2, REPLACED=changed)
    assert alone.once("plain_ranks") == 0, alone.log()
    told = {"KILL": "1 at 2", "LAYOUT": "rep2", "REPLACED": changed}
    run = PageRun(ranks, JOB, tmp_path / "moved", 2, **told)
    assert run.supervised() == 0, run.log()
    assert any("launching again from step 1" in line for line in run.said), run.said
    assert run.losses() == alone.losses()


def test_three_statements_are_added() -> None:
    """However many lines the longest of them is written in."""
    old = {ast.unparse(node) for node in ast.parse(block(PAGE, HEADING)).body}
    added = [node for node in ast.parse(script()).body if ast.unparse(node) not in old]
    assert sorted(type(node).__name__ for node in added) == ["Assign", "Expr", "ImportFrom"]


def _lines(run: PageRun, rank: int = 0) -> dict[str, dict[int, Any]]:
    """By what Trainer logged on a rank: its value at each step."""
    found: dict[str, dict[int, Any]] = {}
    for path in (run.out / f"steps-{rank}.jsonl", run.out / f"other-{rank}.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            for what, value in line.items():
                found.setdefault(what, {})[line["step"]] = value
    return found
