"""A job with nearly everything in two switches: what surrounds the training goes on as well."""

from pathlib import Path
from typing import Any

import pytest

from tests.attach.running import UserRun
from tests.hook.harness import Zygote, worst_difference

DP2 = {"dp_shard": 2}
TP2 = {"tp": 2}


@pytest.fixture(scope="module")
def everything(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> UserRun:
    """A compiled job with workers and profiler that went from dp2 to tp2 and back."""
    run = UserRun(
        zygote,
        tmp_path_factory.mktemp("everything"),
        2,
        layout=DP2,
        turns=[(4, TP2), (8, DP2)],
        compiled=True,
    )
    assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "tp2", "dp2"], (run.ends(), run.log())
    return run


def test_a_compiled_job_switches_and_its_losses_do_not_move(
    everything: UserRun, plain: dict[int, float]
) -> None:
    """Against the same job that was neither compiled nor switched."""
    assert worst_difference(everything.losses(), plain) <= 1e-5
    ends = everything.ends()[0]["switches"]
    assert [each[:2] for each in ends] == [[4, "confirmed"], [8, "confirmed"]]


def test_a_job_that_is_fed_otherwise_would_show(plain: dict[int, float]) -> None:
    """The sabotaged twin: one step that is missing moves the losses a thousand times more."""
    shifted = {step: plain[min(step + 1, 12)] for step in plain}
    assert worst_difference(shifted, plain) > 1e-2


def test_what_surrounds_the_training_goes_on(zygote: Zygote, tmp_path: Path) -> None:
    """Its own signal handler, the profiler, and as many workers as in the first layout."""
    turns = [(2, TP2), (4, DP2)]
    run = UserRun(
        zygote,
        tmp_path,
        2,
        layout=DP2,
        turns=turns,
        steps=6,
        boundary_every=2,
        workers=True,
        profiler=True,
    )
    assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "tp2", "dp2"]
    for end in run.ends():
        assert end["signals"] == 6
        assert end["events"] > 100
    assert {line["children"] for line in run.tracked()} == {1}


def test_one_rank_leads_and_logs_each_step_in_order(everything: UserRun) -> None:
    """No step is missing and none is there twice."""
    tracked: list[dict[str, Any]] = everything.tracked()
    assert [line["step"] for line in tracked] == list(range(1, 13))
    assert {line["rank"] for line in tracked} == {0}
    assert not any(line["again"] for line in tracked)


def test_it_saved_at_its_save_steps(everything: UserRun, tmp_path: Path) -> None:
    """And kept the last three."""
    names = sorted(each.name for each in everything.checkpoints.glob("step-*"))
    assert names == ["step-00000004", "step-00000008", "step-00000012"]
