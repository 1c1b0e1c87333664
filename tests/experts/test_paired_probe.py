"""Paired probes: what a router's lean costs on one batch, and nothing of the router changes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.experts.test_router import COSTS, batches, router, shares
from wattmesh.integrations.pytorch.experts.paired_probe import paired_probe
from wattmesh.integrations.pytorch.experts.router import EnergyRouter, RouterMode
from wattmesh.reconfig.hook.loss_pairs import MOST_GAP, gap_of
from wattmesh.reconfig.state.state import State

STATE = cast(State, SimpleNamespace())


def cost_of(found: EnergyRouter) -> Any:
    """A probe whose loss says how unequal the loads of a batch are, and what the loads were."""
    loads: list[torch.Tensor] = []

    def probe(_: State) -> float:
        chosen = found(batches(1, 2048)[0]).chosen_NP.flatten()
        loads.append(torch.bincount(chosen, minlength=len(found.bias_X)).double())
        return float((loads[-1] / loads[-1].mean() - 1).square().mean())

    return probe, loads


@pytest.mark.parametrize("mode", list(RouterMode))
def test_without_costs_both_losses_are_one(mode: RouterMode) -> None:
    """A router that does not lean is probed once."""
    found = router(mode)
    probe, loads = cost_of(found)
    leaning, plain = paired_probe(probe, lambda _: [found])(STATE) or (0.0, 1.0)
    assert leaning == plain
    assert len(loads) == 1


@pytest.mark.parametrize("mode", [RouterMode.SOFT, RouterMode.TILT, RouterMode.DUAL])
def test_the_lean_is_taken_off_for_one_probe_and_put_back_to_the_bit(mode: RouterMode) -> None:
    """Loads of the plain probe are balanced as without costs; buffers are what they were."""
    found = router(mode, bias_rate=0.0 if mode is RouterMode.SOFT else 0.01)
    if mode is RouterMode.DUAL:
        shares(found, 200)
    even = cost_of(found)
    even[0](STATE)
    found.set_costs(COSTS, 0.5)
    if mode is RouterMode.TILT:
        shares(found, 300)
    before = {name: each.clone() for name, each in found.state_dict().items()}
    probe, loads = cost_of(found)
    leaning, plain = paired_probe(probe, lambda _: [found])(STATE) or (0.0, 1.0)
    assert len(loads) == 2
    assert all(torch.equal(before[name], each) for name, each in found.state_dict().items())
    cheap_before, cheap = (float(each[:3].sum() / each.sum()) for each in loads)
    assert cheap_before > cheap + 0.02
    if mode is RouterMode.TILT:
        wanted = loads[0] / found.factor_X
        wanted *= loads[0].sum() / wanted.sum()
        assert float((loads[1] - wanted).abs().max() / loads[1].mean()) < 0.03
        assert leaning > plain
    else:
        assert torch.equal(loads[1], even[1][0]) or mode is RouterMode.DUAL


def test_a_router_that_is_not_seen_to_choose_proves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Compiled before it is probed, it answers without hooks: no pair, and one sentence once."""
    found = router(RouterMode.TILT)
    found.set_costs(COSTS, 0.5)
    compiled = torch.compile(nn.Sequential(found), backend="eager")

    def probe(_: State) -> float:
        return float(compiled(batches(1, 64)[0]).weights_NP.detach().sum())

    with torch.no_grad():
        probe(STATE)
    measure = paired_probe(probe, lambda _: [found])
    before = found.bias_X.clone()
    assert [measure(STATE), measure(STATE)] == [None, None]
    assert torch.equal(found.bias_X, before)
    assert caplog.text.count("was not seen to choose") == 1
    by_hand = paired_probe(
        lambda _: float(found(batches(1, 64)[0]).weights_NP.detach().sum()), lambda _: [found]
    )
    assert by_hand(STATE) is not None


def test_a_gap_is_relative_and_what_is_no_number_is_the_worst_or_unknown() -> None:
    """A plain loss that is none says nothing; a leaning one that is none says the worst."""
    assert gap_of(2.02, 2.0) == pytest.approx(0.01)
    assert gap_of(-2.0, -2.0) == 0.0
    assert gap_of(1.0, float("nan")) is None
    assert gap_of(1.0, 0.0) is None
    assert gap_of(float("nan"), 1.0) == MOST_GAP
    assert gap_of(float("inf"), 1.0) == MOST_GAP
