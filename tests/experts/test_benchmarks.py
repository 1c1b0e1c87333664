"""The benchmarks of experts say what they measured: pairs by seed, rivals, bits, halves."""

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.experts import __main__ as experts
from benchmarks.experts.groups import group, problem, topical
from benchmarks.experts.train import CONFIG, EXPERTS, Trained, Variant, build, digest
from benchmarks.placement import __main__ as placement
from wattmesh.policies.experts import scores
from wattmesh.policies.experts.placement.affinity import count_choices
from wattmesh.policies.experts.placement.problem import contiguous


def trained(name: str, seed: int, loss: float, cheap_share: float = 0.75) -> Trained:
    """What a router left: so many rows on the experts of the fast GPUs, which are the first 12."""
    rows = 1600
    cheap = round(rows * cheap_share)
    chosen = np.concatenate([np.arange(cheap) % 12, 12 + np.arange(rows - cheap) % 4])
    return Trained(
        variant=Variant(name=name),
        seed=seed,
        losses=(loss,),
        held_loss=loss,
        chosen=(chosen[:, None],),
        digest=0,
    )


def test_losses_are_paired_by_seed_and_energy_with_the_launch_without_costs() -> None:
    """1 % more in each of two seeds whose own losses are far apart."""
    rows = experts.rows_of(
        [
            trained("off", 0, 2.0),
            trained("off", 1, 3.0),
            trained("tilt 0.2", 0, 2.02, 0.9),
            trained("tilt 0.2", 1, 3.03, 0.9),
        ]
    )
    off, tilt = rows
    assert tilt["loss_increase"] == pytest.approx(0.01)
    assert tilt["loss_increase_error"] == pytest.approx(0, abs=1e-12)
    assert off["energy_as_launched"] == 1.0
    assert tilt["energy_by_speed"] < off["energy_by_speed"] < 0.85


@pytest.mark.parametrize(
    ("loss", "energy", "beaten"),
    [(1.9, 0.6, ["tilt 0.2"]), (2.1, 0.6, []), (1.9, 0.9, []), (2.0, 0.8, ["tilt 0.2"])],
)
def test_a_router_is_dominated_by_a_rival_that_is_no_worse_in_both(
    loss: float, energy: float, beaten: list[str]
) -> None:
    """And by `off` or `soft` never: they are no rivals."""
    rows: list[dict[str, Any]] = [
        {"router": "off", "held_loss": 1.0, "energy_by_speed": 0.1},
        {"router": "tilt 0.2", "held_loss": 2.0, "energy_by_speed": 0.8},
        {"router": "rival: one expert less", "held_loss": loss, "energy_by_speed": energy},
    ]
    assert experts.dominated(rows) == beaten


def test_a_changed_bit_changes_the_digest() -> None:
    """Of any tensor: inertness is judged by it. And equal seeds begin equally."""
    model, _ = build(Variant(name="a"), 3)
    same, mixtures = build(Variant(name="b"), 3)
    assert digest(model) == digest(same)
    mixtures[1].energy_router.bias_X.view(torch.int32)[2] ^= 1
    assert digest(model) != digest(same)
    other, _ = build(Variant(name="a"), 4)
    assert digest(other) != digest(model)


def test_costs_of_equal_gpus_are_exactly_0_and_of_mixed_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """12 experts on the fast GPUs, 4 on the slow ones. A twin that believes every reading leans."""
    for seed in (None, *range(5)):
        assert experts.costs_of(experts.EQUAL, as_read=seed) == (0.0,) * EXPERTS
    costs = experts.costs_of(experts.MIXED)
    assert costs[:12] == (costs[0],) * 12
    assert costs[12:] == (costs[15],) * 4
    assert costs[0] < 0 < costs[15]
    assert CONFIG.model.experts == EXPERTS
    monkeypatch.setattr(scores, "LEAST_SPREAD", 0.0)
    monkeypatch.setattr(scores, "ERRORS", 0.0)
    assert any(experts.costs_of(experts.EQUAL, as_read=0))


def test_a_placement_is_judged_on_tokens_that_it_has_not_seen() -> None:
    """The second half of a trace; and nodes that a token visits are counted one by one."""
    chosen = (np.array([[0, 1]] * 4 + [[2, 3]] * 4),)
    seen, unseen = placement.halves(chosen, 4, onward=True)
    assert seen.loads_LX.tolist() == [[4, 4, 0, 0]]
    assert unseen.loads_LX.tolist() == [[0, 0, 4, 4]]
    asked = problem(unseen, group((4, "h100"), per_node=2))
    plain = contiguous(asked)
    assert placement.visits(asked, plain, chosen) == 8
    assert placement.visits(asked, plain[:, [0, 2, 1, 3]], chosen) == 16


def test_drawn_routing_has_topics_and_no_expert_twice() -> None:
    """Experts of one topic share more tokens than others."""
    (chosen,) = topical(16, 1, 4, 500, seed=1)
    assert all(len(set(row)) == 4 for row in chosen.tolist())
    together = count_choices([chosen], 16).together_LXX[0]
    assert together.max() > 3 * np.median(together)


def test_a_tilt_by_chance_knows_nothing_of_the_costs() -> None:
    """The same costs dealt anew; a single draw would often be a third of the router it rivals."""
    costs = experts.costs_of(experts.MIXED)
    deals = [experts.drawn_by_chance(costs, seed) for seed in range(5)]
    assert len(set(deals)) == 5
    for deal in deals:
        assert sorted(deal) == sorted(costs)
        assert np.corrcoef(costs, deal)[0, 1] == pytest.approx(0, abs=1e-9)
    single = np.random.default_rng(0).permutation(costs)
    assert np.corrcoef(costs, single)[0, 1] > 0.3
