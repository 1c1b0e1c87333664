"""docs/attach.md says what becomes of each thing that a job may have."""

from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "attach.md").read_text()
VERDICTS = ("works", "by restart", "refused")


def rows(page: str) -> list[list[str]]:
    """The cells of every row of the tables of what a job may have, their heads apart."""
    survives = page.partition("\n## Will my job survive it?\n")[2] or page
    lines = [line for line in survives.splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [cells for cells in found if cells[0] != "what you have"]


def unanswered(page: str) -> list[str]:
    """List rows without one of the three answers."""
    return [
        cells[0] for cells in rows(page) if len(cells) != 3 or not cells[1].startswith(VERDICTS)
    ]


def test_every_line_of_the_table_has_an_answer() -> None:
    """It works, it goes by restart, or it is refused."""
    assert len(rows(PAGE)) > 50
    assert unanswered(PAGE) == []


@pytest.mark.parametrize(
    "thing",
    [
        "torch.compile",
        "`async_save` in flight",
        "your own checkpointer",
        "a stateful loader",
        "EMA",
        "LR schedulers",
        "GradScaler",
        "fp8 amax",
        "MoE router",
        "frozen parameters",
        "tied embeddings",
        "an experiment tracker",
        "signal handlers",
        "torch profiler",
        "DataLoader workers",
        "gradient accumulation",
        "activation checkpointing",
        "random numbers",
        "torchtitan",
        "an Accelerate script",
    ],
)
def test_what_a_job_may_have_has_its_line(thing: str) -> None:
    """Nothing that a user asks about was left out, or was dropped later."""
    assert any(cells[0].startswith(thing) for cells in rows(PAGE))


def test_what_was_never_run_is_said_in_words() -> None:
    """No claim about machines that no test has seen."""
    words = PAGE.partition("### What no test here reaches")[2].partition("\n## ")[0]
    for thing in ("32 Slurm nodes", "NCCL", "CUDA graphs", "Trainers of others on a GPU"):
        assert thing in words


@pytest.mark.parametrize("row", ["| a thing | perhaps | somehow |", "| a thing | works |"])
def test_a_line_without_an_answer_would_be_seen(row: str) -> None:
    """The sabotaged twins."""
    assert unanswered(row) == ["a thing"]
