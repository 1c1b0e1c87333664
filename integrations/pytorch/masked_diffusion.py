"""Masked diffusion of tokens: noise that depends on logical positions, and the loss of undoing it.

Every sample has a noise level, 1 to `levels`; at level n each of its tokens is replaced by the mask
token with probability n / levels. The model sees all positions and is asked for the masked tokens.
The cross-entropy of a sample is divided by that probability, so that its mean bounds the text's
negative log-likelihood (Nie et al. 2025, "Large Language Diffusion Models", section 2; Sahoo et al.
2024, "Simple and Effective Masked Diffusion Language Models").

Invariant: level and masked positions are hashes of seed, global sample number and position, in
whole numbers, so that every rank of every layout draws the same. A step needs no part in it: sample
numbers never repeat.

Shape suffixes: B batch, S positions, V vocabulary; 2: (token or `IGNORED`, level).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional

from wattmesh.integrations.pytorch.dropout import bits
from wattmesh.integrations.pytorch.loss import IGNORED

_LEVEL_SITE, _MASK_SITE = -1, -2
"""Sites of the hash; a model's dropout has those from 0 on."""


@dataclass(frozen=True, slots=True)
class TokenNoise:
    """The noise of a run.

    Attributes:
        levels: how many levels there are, 1 to 2^30; at the highest, every token is masked.
        mask: the mask token.
        seed: of the run.
    """

    levels: int
    mask: int
    seed: int

    def level(self, samples_B: Tensor) -> Tensor:
        """Return the level of each sample, 1 to `levels`, int64, (B,).

        Args:
            samples_B: global sample numbers, int64.
        """
        nowhere = torch.zeros(1, dtype=torch.int64, device=samples_B.device)
        drawn_B = bits(1, self.seed, _LEVEL_SITE, samples_B, nowhere).flatten()
        return 1 + (drawn_B * self.levels >> 32)

    def __call__(
        self, tokens_BS: Tensor, samples_B: Tensor, positions_S: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mask tokens.

        Args:
            tokens_BS: any part of a batch, int64.
            samples_B: global sample numbers of the rows, int64.
            positions_S: positions of the columns within their sequences, int64.

        Returns:
            What the model sees, (B, S), and what `diffusion_loss` wants, (B, S, 2).
        """
        level_BS = self.level(samples_B)[:, None].expand_as(tokens_BS)
        drawn_BS = bits(1, self.seed, _MASK_SITE, samples_B, positions_S).squeeze(-1)
        masked_BS = drawn_BS * self.levels < level_BS << 32
        wanted_BS = tokens_BS.masked_fill(~masked_BS, IGNORED)
        seen_BS = tokens_BS.masked_fill(masked_BS, self.mask)
        return seen_BS, torch.stack((wanted_BS, level_BS), dim=-1)


def diffusion_loss(logits_BSV: Tensor, targets_BS2: Tensor, levels: int, tokens: float) -> Tensor:
    """Return the weighted cross-entropy over `tokens`, all tokens of the global batch.

    A plain sum over ranks and microbatches is then the loss of the global batch.

    Args:
        logits_BSV: of every position, masked or not.
        targets_BS2: from `TokenNoise`.
        levels: of the noise.
        tokens: positions of the global batch.
    """
    if isinstance(logits_BSV, DTensor):
        logits_BSV = logits_BSV.to_local()
    wanted_N, level_N = targets_BS2.flatten(0, 1).unbind(-1)
    each_N = functional.cross_entropy(
        logits_BSV.flatten(0, 1), wanted_N, reduction="none", ignore_index=IGNORED
    )
    return (each_N * (levels / level_N.to(each_N.dtype))).sum() / tokens
