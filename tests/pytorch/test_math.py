"""What makes layouts equal, piece by piece: masks, losses, experts, gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from examples.pretrain.config import preset
from examples.pretrain.experts import MixtureOfExperts
from wattmesh.integrations.pytorch.dropout import bits, dropout
from wattmesh.integrations.pytorch.gradients import Gradient, clip, squared_norm_share
from wattmesh.integrations.pytorch.loss import IGNORED, token_loss

SAMPLES, POSITIONS = torch.arange(100, 108), torch.arange(16)


def drop(samples: torch.Tensor, positions: torch.Tensor, *, seed: int = 3, site: int = 5) -> object:
    """Drop from ones; give what was kept, as a list."""
    ones = torch.ones(len(samples), len(positions), 12)
    kept = dropout(ones, 0.25, seed=seed, site=site, samples_B=samples, positions_S=positions)
    return kept.tolist()


def test_a_mask_is_the_same_wherever_its_part_of_the_batch_is() -> None:
    """Rows and columns of the batch keep their masks in any grouping; other keys change them."""
    whole = torch.tensor(drop(SAMPLES, POSITIONS))
    part = torch.tensor(drop(SAMPLES[[5, 2]], POSITIONS[[0, 15, 7]]))
    assert torch.equal(part, whole[[5, 2]][:, [0, 15, 7]])
    for other in (drop(SAMPLES + 8, POSITIONS), drop(SAMPLES, POSITIONS + 16)):
        assert other != whole.tolist()
    assert drop(SAMPLES, POSITIONS, seed=4) != whole.tolist()
    assert drop(SAMPLES, POSITIONS, site=6) != whole.tolist()


def test_a_mask_drops_its_share_and_keeps_the_mean() -> None:
    """A quarter goes, the rest is scaled; bits are uniform in every byte of the 32."""
    ones = torch.ones(64, 64, 64, dtype=torch.float64)
    samples, positions = torch.arange(64) + (1 << 60), torch.arange(64)
    kept = dropout(ones, 0.25, seed=0, site=0, samples_B=samples, positions_S=positions)
    assert float((kept == 0).double().mean()) == pytest.approx(0.25, abs=0.005)
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.005)
    found = bits(64, 0, 0, samples, positions)
    assert int(found.min()) >= 0
    assert int(found.max()) < 1 << 32
    for shift in (0, 8, 16, 24):
        assert float(((found >> shift) & 255).double().mean()) == pytest.approx(127.5, abs=0.5)


@settings(max_examples=25)
@given(st.data())
def test_the_loss_does_not_depend_on_how_samples_are_grouped(data: st.DataObject) -> None:
    """With ragged masks the sum of parts is the whole; a mean of means would not be."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 30)))
    logits = torch.randn(8, 5, 7, dtype=torch.float64, generator=generator)
    targets = torch.randint(0, 7, (8, 5), generator=generator)
    targets[torch.rand(8, 5, generator=generator) < 0.4] = IGNORED
    targets[0, 0] = 1
    tokens = float((targets != IGNORED).sum())
    whole = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    size = data.draw(st.sampled_from([1, 2, 4, 8]))
    pairs = zip(torch.split(logits, size), torch.split(targets, size), strict=True)
    total = sum(token_loss(x, y, tokens) for x, y in pairs)
    assert float(total) == pytest.approx(float(whole), rel=1e-12)


def test_experts_give_what_each_token_would_get_alone() -> None:
    """Sorting and gathering rows changes nothing: the oracle goes token by token."""
    config = preset("tiny-moe").model
    mixture = MixtureOfExperts(config).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in mixture.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    x_BSD = torch.randn(2, 3, config.dim, dtype=torch.float64, generator=generator)
    found = mixture(x_BSD)
    for place in [(b, s) for b in range(2) for s in range(3)]:
        token = x_BSD[place]
        scores = functional.softmax(mixture.router(token), dim=-1)
        expected = torch.zeros_like(token)
        for expert in torch.topk(scores, config.experts_per_token).indices.tolist():
            gate, up = mixture.experts.gate[expert] @ token, mixture.experts.up[expert] @ token
            done = mixture.experts.down[expert] @ (functional.silu(gate) * up)
            expected += scores[expert] * done
        torch.testing.assert_close(found[place], expected, rtol=1e-12, atol=1e-12)
    assert int(mixture.counts_X.sum()) == 6 * config.experts_per_token


def test_a_bias_moves_towards_equal_load_and_changes_no_weight() -> None:
    """Experts above the mean sink, those below rise; the counts begin anew."""
    mixture = MixtureOfExperts(preset("tiny-moe").model)
    mixture.counts_X += 5
    mixture.rebalance(torch.tensor([10.0, 2.0, 6.0, 6.0]), 0.5)
    assert mixture.bias_X.tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert int(mixture.counts_X.sum()) == 0


@pytest.mark.parametrize(("limit", "expected"), [(1.0, 1.0), (100.0, 5.0)])
def test_clipping_scales_by_the_global_norm(limit: float, expected: float) -> None:
    """Two gradients, one whole on both of two ranks and one in halves, of norm 5 together."""
    whole, half = torch.tensor([3.0]), torch.tensor([4.0])
    ranks = [
        [Gradient(whole.clone(), 1), Gradient(half.clone(), 2)],
        [Gradient(whole.clone(), 1), Gradient(torch.zeros(1), 2)],
    ]
    squared = sum(float(squared_norm_share(each, replicas=2)) for each in ranks)
    assert squared == pytest.approx(25.0)
    for each in ranks:
        clip(each, squared**0.5, limit)
    assert sum(float(squared_norm_share(each, 2)) for each in ranks) ** 0.5 == pytest.approx(
        expected
    )
