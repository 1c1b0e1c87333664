"""A Lightning script through layouts: the losses of the same script without us."""

import ast
import json
from typing import Any

import pytest

from tests.docs.blocks import block
from tests.docs.page_run import PageRun, worst
from tests.hook.harness import Zygote
from tests.lightning.page import HEADING, PAGE, script

JOB = "tests.lightning.moved"
ROUNDED = 2e-6
"""In fp32, sums in another order. Measured: 1e-7."""


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
