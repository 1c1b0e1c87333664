"""What a job proves in its own precision, held to a measured noise that excuses only so much."""

import math

import pytest
import torch
from torch.distributed.checkpoint.stateful import Stateful

from wattmesh.reconfig.catalogue import Equivalence
from wattmesh.reconfig.equivalence.own_job import (
    KNOWN,
    LARGEST_MEMORY_SHARE,
    MOST,
    classify_own_job,
    close_losses,
    limit,
    losses_apart,
    memory,
)
from wattmesh.reconfig.equivalence.verdict import Verdict
from wattmesh.reconfig.equivalence.witness import unsaved_schedule
from wattmesh.reconfig.state.state import State


def verdict(check: str, measured: float = 0.0, allowed: float = 1.0) -> Verdict:
    """Make a verdict."""
    return Verdict(
        check=check, name="n", measured=measured, limit=allowed, sentence=f"{check} told"
    )


ALL = [verdict(each) for each in ("V1", "V2", "V7", "V12")]


def test_four_times_the_noise_is_allowed_within_what_the_dtype_explains() -> None:
    """Neither a tiny noise nor a wild one moves the limit out of its dtype's range."""
    assert limit(3e-3, "bfloat16") == pytest.approx(1.2e-2)
    assert limit(1.0, "bfloat16") == MOST * KNOWN["bfloat16"]
    assert limit(0.0, "float32") == pytest.approx(1e-6)
    assert limit(None, "bfloat16") == limit(math.nan, "bfloat16") == KNOWN["bfloat16"]
    assert limit(None, "int4") == KNOWN["float32"]


def test_one_loss_at_every_step_proves_nothing() -> None:
    """A job that reports one number whatever it trains would pass; one step may be anything."""
    same = dict.fromkeys(range(1, 9), 2.5)
    found = close_losses(same, same, [same], "float32")
    assert not found.ok
    assert "a loss of 2.5 at every step" in found.sentence
    assert close_losses({1: 2.5}, {1: 2.5}, [{1: 2.5}], "float32").ok
    assert close_losses({**same, 9: 2.4}, {**same, 9: 2.4}, [], "float32").ok


def test_losses_are_held_to_the_control_that_never_switched() -> None:
    """Twice the control's drift holds, eight times does not; bf16 has wider bounds than fp32."""
    reference = {step: 2.0 * 0.99**step for step in range(1, 9)}
    control = {step: loss * (1 + 2e-3) for step, loss in reference.items()}
    near = {step: loss * (1 + 4e-3) for step, loss in reference.items()}
    far = {step: loss * (1 + 16e-3) for step, loss in reference.items()}
    assert close_losses(near, reference, [control], "bfloat16").ok
    found = close_losses(far, reference, [control], "bfloat16")
    assert not found.ok
    assert "2.0e-03 in the control" in found.sentence
    assert not close_losses(near, reference, [control], "float32").ok


@pytest.mark.parametrize("wrong", [{}, {1: math.nan}, {1: math.inf}])
def test_losses_that_are_no_numbers_prove_nothing(wrong: dict[int, float]) -> None:
    """No common step, NaN and infinity are all infinitely far apart."""
    assert losses_apart(wrong, {1: 2.0})[0] == math.inf
    assert not close_losses(wrong, {1: 2.0}, [], "float32").ok


def test_a_device_that_is_nearly_full_fails_and_an_unknown_one_is_no_check() -> None:
    """The limit leaves room for fragments."""
    assert memory(None, 100) is None
    assert memory(100, None) is None
    near, over = memory(90, 100), memory(96, 100)
    assert near is not None
    assert over is not None
    assert (near.ok, over.ok, over.limit) == (True, False, LARGEST_MEMORY_SHARE)


def test_only_all_four_checks_make_a_point_numerical() -> None:
    """Each one missing, and each one failing, leaves the point without a class."""
    assert classify_own_job(ALL, same_layout=False).equivalence is Equivalence.NUMERICAL
    assert classify_own_job(ALL[:1], same_layout=True).equivalence is Equivalence.EXACT
    assert classify_own_job([], same_layout=True).equivalence is Equivalence.NONE
    for index in range(3):
        rest = [each for at, each in enumerate(ALL) if at != index]
        found = classify_own_job(rest, same_layout=False)
        assert found.equivalence is Equivalence.NONE
        assert "not checked" in found.because
        broken = [*rest, verdict(ALL[index].check, 2.0)]
        assert classify_own_job(broken, same_layout=False).equivalence is Equivalence.NONE


@pytest.mark.parametrize("kept", [True, False])
def test_a_schedule_that_no_checkpoint_keeps_is_seen(kept: bool) -> None:
    """It would start anew at every switch; a rate that nothing schedules needs nothing."""
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    assert not unsaved_schedule(State(modules=[net], optimizers=[optimizer]))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    extra: dict[str, Stateful] = {"schedule": schedule} if kept else {}
    found = State(modules=[net], optimizers=[optimizer], extra=extra)
    assert unsaved_schedule(found) is not kept
