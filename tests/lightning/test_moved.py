"""A Lightning script through layouts: the losses of the same script without us."""

import ast
import json
from pathlib import Path

import pytest

from tests.docs.blocks import block
from tests.docs.page_run import PageRun, worst
from tests.hook.harness import Zygote
from tests.lightning.page import HEADING, PAGE, script

JOB = "tests.lightning.moved"
ROUNDED = 2e-6
"""In fp32, sums in another order. Measured: 1e-7."""


BF16 = 2e-3
"""Products in bf16 of fp32 parameters. Measured: 7e-4; a step of other samples is 1e-1 off."""


@pytest.fixture(scope="module")
def ranks(zygote: Zygote) -> Zygote:
    """Forks ranks that need not import Lightning, each for itself."""
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
        turns=[[1, "dp2 tp2"], [3, "dp2"], [4, "dp4"]],
        KILL="1 at 3",
    )
    assert run.supervised() == 0, run.log()
    return run


def test_a_script_goes_through_three_layouts_is_killed_and_trains_what_it_would_alone(
    moved: PageRun, alone: PageRun
) -> None:
    """Its shuffled data over the border of an epoch, accumulation, schedule and clipping."""
    layouts = ["dp4", "dp2 tp2", "dp2 tp2", "dp2", "dp4", "dp4"]
    assert moved.layouts() == layouts, moved.log()
    assert any("launching again from step 2" in line for line in moved.said), moved.said
    assert worst(moved.losses(), alone.losses()) <= ROUNDED
    switches = json.loads((moved.out / "switches.json").read_text())
    assert switches == [[3, "confirmed", ""], [4, "confirmed", ""]]


def test_what_lightning_logs_does_not_depend_on_layouts(moved: PageRun, alone: PageRun) -> None:
    """Rates of its schedule, means over epochs that were cut, validation, an average."""
    for what, allowed in (("rate", 0.0), ("batches", 0.0)):
        assert worst(_lines(moved, "steps", what), _lines(alone, "steps", what)) <= allowed, what
    for what in ("train_loss", "val_loss", "ema"):
        found, wanted = _lines(moved, "epochs", what), _lines(alone, "epochs", what)
        assert worst(found, wanted) <= ROUNDED, what


def test_what_follows_training_is_done_while_the_ranks_are_there(moved: PageRun) -> None:
    """`train(session, then)`, on every rank."""
    assert [each.read_text() for each in moved.out.glob("then-*")] == ["6"] * 4


def test_mixed_precision_is_moved_and_data_that_begin_anew_are_seen(
    ranks: Zygote, alone: PageRun, tmp_path: Path
) -> None:
    """Products in bf16, by Lightning's other name. The sabotaged twin: step 2 reads step 1's."""
    changed = [
        ["max_epochs=2,", 'max_epochs=2, precision="bf16-mixed",'],
        UNNOTED,
        ["from lightning import", "from pytorch_lightning import"],
        ["from lightning.pytorch.strategies", "from pytorch_lightning.strategies"],
    ]
    told = {"LAYOUT": "dp2", "SPOIL": "yes", "REPLACED": json.dumps(changed)}
    run = PageRun(ranks, JOB, tmp_path, 2, turns=[[3, "1"], [4, "dp2"]], **told)
    assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "dp2", "dp2", "1 rank", "dp2", "dp2"], run.log()
    off = {step: abs(loss / alone.losses()[step] - 1) for step, loss in run.losses().items()}
    assert 0 < max(off[step] for step in (1, 2, 3, 4)) <= BF16, off
    assert off[5] > BF16, off


def test_a_loss_that_depends_on_step_and_epoch_is_moved(ranks: Zygote, tmp_path: Path) -> None:
    """The probe is taken where the run stands, before and after: else no switch could be proven."""
    annealed = "        loss = loss * (1 + 0.1 * self.global_step + 0.1 * self.current_epoch)\n"
    changed = json.dumps([["        return loss\n", f"{annealed}        return loss\n"], UNNOTED])
    alone = PageRun(ranks, JOB, tmp_path / "alone", 1, REPLACED=changed)
    assert alone.once("plain") == 0, alone.log()
    turns = [[2, "1"], [3, "tp2"]]
    run = PageRun(ranks, JOB, tmp_path / "moved", 2, LAYOUT="dp2", turns=turns, REPLACED=changed)
    assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "dp2", "1 rank", "tp2", "tp2", "tp2"], run.log()
    assert worst(run.losses(), alone.losses()) <= ROUNDED


def test_what_a_module_counts_and_collects_itself_is_not_touched(
    ranks: Zygote, tmp_path: Path
) -> None:
    """The probe calls `training_step` beside training: to the last bit."""
    counts = (
        "        self.times = getattr(self, 'times', 0) + 1\n"
        "        self.kept = getattr(self, 'kept', [])\n"
        "        self.kept.append(self.times)\n"
        "        loss = loss * (1 + 0.01 * self.times + 0.01 * len(self.kept))\n"
    )
    changed = json.dumps([["        return loss\n", f"{counts}        return loss\n"], UNNOTED])
    alone = PageRun(ranks, JOB, tmp_path / "alone", 1, REPLACED=changed)
    assert alone.once("plain") == 0, alone.log()
    run = PageRun(ranks, JOB, tmp_path / "attached", 1, LAYOUT="1", REPLACED=changed)
    assert run.once() == 0, run.log()
    assert run.losses() == alone.losses()


UNNOTED = ["log_every_n_steps=1,", "logger=False, enable_checkpointing=False,"]
DROPPED = ["nn.GELU(),", "nn.GELU(), nn.Dropout(0.3),"]
NO_OTHER = '[{"scheduler": schedule, "interval": "step"}]'
WORSENS = """[
            {
                "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(
                    optimizer, factor=0.9, patience=0, threshold=9, threshold_mode="abs"
                ),
                "interval": interval,
                "monitor": monitor,
            }
            for interval, monitor in (("step", "train_loss_step"), ("epoch", "val_loss"))
        ]"""
"""Schedules that lower the rate whenever they are asked, at each step and at each epoch's end."""


def test_a_run_that_is_killed_in_an_epoch_draws_what_it_would_have_drawn(
    ranks: Zygote, tmp_path: Path
) -> None:
    """Dropout, schedules that wait for metrics, a metric, validation in epochs: to the last bit.

    It goes on from a step that a validation followed, where Lightning by itself would ask the
    schedules twice, and ends in an epoch, by steps.
    """
    changed = [
        DROPPED,
        ["max_epochs=2,", "max_steps=5, val_check_interval=2,"],
        [NO_OTHER, WORSENS],
        ["import torch\n", "import torch\nfrom torchmetrics import MeanMetric\n"],
        ["torch.manual_seed(0)", "torch.manual_seed(0)\n        self.seen = MeanMetric()"],
        ["        return loss\n", SEEN],
    ]
    alone, run = _killed(ranks, tmp_path, changed, 2, kill="1 at 2", every=1)
    assert any("launching again from step 1" in line for line in run.said), run.said
    assert run.losses() == alone.losses()
    assert _lines(run, "steps", "rate") == _lines(alone, "steps", "rate")
    for what in ("train_loss", "val_loss", "seen"):
        found, wanted = _lines(run, "epochs", what), _lines(alone, "epochs", what)
        assert worst(found, wanted) <= ROUNDED, what


SEEN = """        self.seen.update(loss.detach())
        self.log("seen", self.seen, on_step=False, on_epoch=True)
        return loss
"""


def test_a_run_that_is_killed_after_an_epoch_draws_what_it_would_have_drawn(
    ranks: Zygote, tmp_path: Path
) -> None:
    """Its loader's workers draw too, by a seed of each epoch: to the last bit."""
    noisy = "collate_fn=lambda rows: torch.stack(rows) + torch.randn(len(rows), 8), num_workers=1"
    changed = [DROPPED, ["max_epochs=2", "max_steps=6"], ["DATA[:20], ", f"DATA[:20], {noisy}, "]]
    alone, run = _killed(ranks, tmp_path, changed, 1, kill="0 at 4", every=3)
    assert any("launching again from step 3" in line for line in run.said), run.said
    assert run.losses() == alone.losses()


def _killed(
    ranks: Zygote, folder: Path, changed: list[list[str]], nproc: int, *, kill: str, every: int
) -> tuple[PageRun, PageRun]:
    """Ranks of a changed script as it is without us, and killed under a session."""
    changed = [*changed, UNNOTED]
    alone = PageRun(ranks, JOB, folder / "alone", nproc, REPLACED=json.dumps(changed))
    assert alone.once("plain") == 0, alone.log()
    changed = [*changed, ["boundary_every=1", f"boundary_every={every}"]]
    told = {"KILL": kill, "LAYOUT": f"dp{nproc}", "REPLACED": json.dumps(changed)}
    run = PageRun(ranks, JOB, folder / "moved", nproc, **told)
    assert run.supervised() == 0, run.log()
    return alone, run


def test_three_statements_are_added() -> None:
    """However many lines the longest of them is written in."""
    before, after = ast.parse(block(PAGE, HEADING)), ast.parse(script())
    old = {ast.unparse(each) for each in before.body}
    added = [type(each).__name__ for each in after.body if ast.unparse(each) not in old]
    assert added == ["ImportFrom", "Assign", "Expr"]


def _lines(run: PageRun, kind: str, what: str) -> dict[int, float]:
    """What the first rank noted last, by step or epoch; a rate of 0 is given as 1."""
    lines = map(json.loads, (run.out / f"{kind}-0.jsonl").read_text().splitlines())
    return {line[kind[:-1]]: line[what] or 1.0 for line in lines}
