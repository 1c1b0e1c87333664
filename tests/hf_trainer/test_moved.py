"""A Trainer script through layouts: the losses of the same script without us."""

import pytest

from tests.docs.page_run import PageRun, worst
from tests.hook.harness import Zygote

JOB = "tests.hf_trainer.moved"
ROUNDED = 2e-6


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
    """dp4, rep2 dp2, killed there, and on to two ranks."""
    run = PageRun(
        ranks,
        JOB,
        tmp_path_factory.mktemp("moved"),
        4,
        LAYOUT="dp4",
        turns=[[1, "rep2 dp2"], [4, "dp2"]],
        KILL="1",
    )
    assert run.supervised() == 0, run.log()
    return run


def test_x(moved: PageRun, alone: PageRun) -> None:
    print(alone.losses(), moved.losses(), moved.layouts(), moved.said)
    print((moved.out / "switches.json").read_text())
    print((moved.out / "other-0.jsonl").read_text())
    print((alone.out / "other-0.jsonl").read_text())
    print((alone.out / "steps-0.jsonl").read_text())
    print((moved.out / "steps-0.jsonl").read_text())
    assert worst(moved.losses(), alone.losses()) <= ROUNDED
