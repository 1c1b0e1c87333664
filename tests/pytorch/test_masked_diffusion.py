"""Noise depends on logical positions alone; its loss adds up over any parts of a batch."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.integrations.pytorch.loss import IGNORED
from wattmesh.integrations.pytorch.masked_diffusion import TokenNoise, diffusion_loss

MASK, LEVELS = 99, 8
NOISE = TokenNoise(LEVELS, MASK, seed=5)
TOKENS_BS = torch.arange(6 * 10).view(6, 10) % MASK
SAMPLES_B = torch.arange(1 << 40, (1 << 40) + 6)
WHOLE = NOISE(TOKENS_BS, SAMPLES_B, torch.arange(10))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
    st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True),
)
def test_a_part_has_the_noise_of_the_whole(rows: list[int], columns: list[int]) -> None:
    """Whichever samples and positions a rank holds, in whatever order."""
    part_BS = TOKENS_BS[rows][:, columns]
    seen_BS, targets_BS2 = NOISE(part_BS, SAMPLES_B[rows], torch.tensor(columns))
    assert torch.equal(seen_BS, WHOLE[0][rows][:, columns])
    assert torch.equal(targets_BS2, WHOLE[1][rows][:, columns])


def test_noise_by_the_place_in_the_part_would_be_noticed() -> None:
    """Sabotaged twin: a rank that counts samples and positions from its own first ones."""
    seen_BS, _ = NOISE(TOKENS_BS[3:, 5:], SAMPLES_B[:3], torch.arange(5))
    assert not torch.equal(seen_BS, WHOLE[0][3:, 5:])


def test_what_is_masked_is_asked_for_and_nothing_else() -> None:
    """A token is either seen or wanted; a sample's level is the same at all its positions."""
    seen_BS, targets_BS2 = WHOLE
    wanted_BS, level_BS = targets_BS2.unbind(-1)
    masked_BS = seen_BS == MASK
    assert torch.equal(torch.where(masked_BS, wanted_BS, seen_BS), TOKENS_BS)
    assert torch.equal(wanted_BS == IGNORED, ~masked_BS)
    assert torch.equal(level_BS[:, 0], NOISE.level(SAMPLES_B))
    assert (level_BS == level_BS[:, :1]).all()
    assert 0 < masked_BS.sum() < masked_BS.numel()


def test_levels_are_even_and_mask_as_many_tokens_as_they_say() -> None:
    """Of 4,000 samples: each level near an eighth; at level n near n / 8; at the last, all."""
    samples_B = torch.arange(4000)
    tokens_BS = torch.zeros(4000, 50, dtype=torch.int64)
    seen_BS, targets_BS2 = NOISE(tokens_BS, samples_B, torch.arange(50))
    level_B = targets_BS2[:, 0, 1]
    for level in range(1, LEVELS + 1):
        of_level = seen_BS[level_B == level]
        assert abs(len(of_level) / 4000 - 1 / LEVELS) < 0.03
        assert abs(float((of_level == MASK).double().mean()) - level / LEVELS) < 0.02
    assert (seen_BS[level_B == LEVELS] == MASK).all()


def test_whether_a_token_is_masked_has_nothing_to_do_with_how_its_level_was_drawn() -> None:
    """Every position alike, also the first, whose number the level's draw has too."""
    seen_BS, targets_BS2 = NOISE(torch.zeros(4000, 4).long(), torch.arange(4000), torch.arange(4))
    share_S = (seen_BS == MASK).double().mean(0)
    assert (share_S - targets_BS2[:, 0, 1].double().mean() / LEVELS).abs().max() < 0.03


def test_losses_of_parts_add_up_to_that_of_the_batch() -> None:
    """Sums over any parts; sabotaged twin: means of parts do not, for levels differ."""
    logits_BSV = torch.randn(6, 10, 100, dtype=torch.float64)
    whole = diffusion_loss(logits_BSV, WHOLE[1], LEVELS, 60)
    halves = zip(torch.split(logits_BSV, 3), torch.split(WHOLE[1], 3), strict=True)
    parts = [diffusion_loss(*each, LEVELS, 60) for each in halves]
    assert abs(float(sum(parts) - whole)) <= 1e-12
    masked = [(half[..., 0] != IGNORED).sum() for half in torch.split(WHOLE[1], 3)]
    means = [part * 60 / count for part, count in zip(parts, masked, strict=True)]
    total = whole * 60 / sum(masked)
    assert abs(float(sum(means) / 2 - total)) > 1e-3


def test_a_loss_weighs_a_token_by_one_over_its_chance_to_be_masked() -> None:
    """By hand: two tokens, one wanted at level 2 of 8, one not masked."""
    logits_BSV = torch.tensor([[[0.0, 0.0], [5.0, 0.0]]], dtype=torch.float64)
    targets_BS2 = torch.tensor([[[1, 2], [IGNORED, 2]]])
    found = diffusion_loss(logits_BSV, targets_BS2, 8, 2)
    assert float(found) == float(torch.log(torch.tensor(2.0, dtype=torch.float64)) * 4 / 2)
