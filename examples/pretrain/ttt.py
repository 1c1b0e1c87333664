"""A test-time-training layer instead of attention: a linear model learns along each sequence.

TTT-Linear (Sun et al. 2024, "Learning to (Learn at Test Time): RNNs with Expressive Hidden
States"): the state of a head is the weight W of a model `f(x) = x + norm(x W)`. It learns to give a
token's value from its key, by one step of gradient descent on half the squared error per token, and
answers the token's query. What keys, values, queries, rates and the first W are is learned outside.

Gradients of the tokens of a chunk are all taken at the W that the chunk began with (the paper's
mini-batch form, with outputs by its dual form), so that a chunk is a few matrix products. Chunks
begin at multiples of their length along the sequence, whoever holds it.

Shape suffixes: B batch, S sequence, C chunk, D model width, H heads (this rank's), E head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.pretrain.config import ModelConfig
from wattmesh.integrations.pytorch.context_parallel.context import Context
from wattmesh.integrations.pytorch.gradients import shard_of

EPSILON = 1e-6


class TttLinear(nn.Module):
    """Mixes positions, causally, by what a linear model of each head learned from those before."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the projections, and the weights that every sequence begins with."""
        super().__init__()
        self.head_dim, width = config.head_dim, config.heads * config.head_dim
        self.learn = InnerLoop(config.ttt_chunk)
        self.query = nn.Linear(config.dim, width, bias=False)
        self.key = nn.Linear(config.dim, width, bias=False)
        self.value = nn.Linear(config.dim, width, bias=False)
        self.rate = nn.Linear(config.dim, config.heads, bias=False)
        # One head's E x E below the other's: cut by heads like the projections.
        self.first = nn.Linear(config.head_dim, width, bias=False)
        self.out = nn.Linear(width, config.dim, bias=False)

    def forward(self, x_BSD: Tensor, context: Context) -> Tensor:
        """Apply the layer: (B, S, D) in and out. Collective."""
        q_BHSE, k_BHSE, v_BHSE = (
            project(x_BSD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        rate_BSH = torch.sigmoid(self.rate(x_BSD)) / self.head_dim
        rate_BHS1 = rate_BSH.transpose(1, 2).unsqueeze(-1)
        first_HEE = torch.unflatten(shard_of(self.first.weight), 0, (-1, self.head_dim))
        first_BHEE = first_HEE.expand(len(x_BSD), -1, -1, -1)
        mixed_BHSE = context.carried(self.learn, first_BHEE, q_BHSE, k_BHSE, v_BHSE, rate_BHS1)
        out_BSD: Tensor = self.out(mixed_BHSE.transpose(1, 2).flatten(-2))
        return out_BSD


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """Learns from consecutive tokens, and answers their queries.

    Attributes:
        chunk: tokens whose gradients are taken at the same weights.
    """

    chunk: int

    def __call__(self, state: Tensor, *inputs_BHS: Tensor) -> tuple[Tensor, Tensor]:
        """Return answers (B, H, S, E) and the weights after all of these tokens.

        Args:
            state: the weights before them, (B, H, E, E).
            inputs_BHS: queries, keys and values (B, H, S, E), rates (B, H, S, 1).
        """
        answers = []
        for part in zip(*(torch.split(each, self.chunk, 2) for each in inputs_BHS), strict=True):
            answer_BHCE, state = learn_chunk(state, *part)
            answers.append(answer_BHCE)
        return torch.cat(answers, 2), state


def learn_chunk(
    weight_BHEE: Tensor, q_BHCE: Tensor, k_BHCE: Tensor, v_BHCE: Tensor, rate_BHC1: Tensor
) -> tuple[Tensor, Tensor]:
    """Answer each query with what the chunk's tokens up to it taught; return answers and weights.

    A token's gradient of W is the outer product of its key and `slope`. So W after some tokens
    never needs to be made: `q W' = q W - sum of (q . k) * rate * slope` over them.
    """
    width = q_BHCE.shape[-1:]
    guess_BHCE = k_BHCE @ weight_BHEE
    normed_BHCE = functional.layer_norm(guess_BHCE, width, eps=EPSILON)
    error_BHCE = k_BHCE + normed_BHCE - v_BHCE
    # Back through the norm, by hand, because it is a part of the forward pass here.
    along_BHC1 = (error_BHCE * normed_BHCE).mean(-1, keepdim=True)
    centred_BHCE = error_BHCE - error_BHCE.mean(-1, keepdim=True) - normed_BHCE * along_BHC1
    scale_BHC1 = torch.rsqrt(guess_BHCE.var(-1, correction=0, keepdim=True) + EPSILON)
    step_BHCE = rate_BHC1 * scale_BHC1 * centred_BHCE
    known_BHCC = torch.tril(q_BHCE @ k_BHCE.transpose(-1, -2))
    answer_BHCE = q_BHCE @ weight_BHEE - known_BHCC @ step_BHCE
    learned_BHEE = weight_BHEE - k_BHCE.transpose(-1, -2) @ step_BHCE
    return q_BHCE + functional.layer_norm(answer_BHCE, width, eps=EPSILON), learned_BHEE
