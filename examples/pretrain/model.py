"""A Llama-like language model: rotary embedding, grouped-query attention, SwiGLU or experts.

Plain PyTorch; `parallel.py` shards it from outside. Three things make that possible. Layers are in
a ModuleDict under their *global* number, so that a parameter has the same name on every pipeline
stage. Head counts are read from the weights' outputs (`-1`), so that a tensor-parallel rank sees
its share. And the model is told on which positions of its sequences a rank works (`Where`).

Shape suffixes:
    B batch    S sequence     D model width    V vocabulary    F hidden width
    H query heads    K key/value heads    E head width     (S, H, K, F: this rank's)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.pretrain.config import ModelConfig, TrainConfig
from examples.pretrain.experts import MixtureOfExperts, make_mixture
from examples.pretrain.ttt import TttLinear
from wattmesh.integrations.pytorch.context_parallel.context import Context
from wattmesh.integrations.pytorch.dropout import dropout
from wattmesh.integrations.pytorch.masked_diffusion import TokenNoise


@dataclass(frozen=True, slots=True)
class Where:
    """Which positions of every sequence this rank works on.

    Attributes:
        context: the positions in attention, and the group of ranks with the others.
        stream_S: the positions in the residual stream; under sequence parallel, a part of the
            context's.
        cos_SE, sin_SE: cosine and sine of the rotary angles at the context's positions.
    """

    context: Context
    stream_S: Tensor
    cos_SE: Tensor
    sin_SE: Tensor

    @classmethod
    def make(
        cls, config: ModelConfig, context: Context, stream_S: Tensor, dtype: torch.dtype
    ) -> "Where":
        """Make the rotary tables of the context's positions."""
        angles_SE = rotary_angles(config, context.positions_S).repeat(1, 2)
        return cls(context, stream_S, angles_SE.cos().to(dtype), angles_SE.sin().to(dtype))


def rotary_angles(config: ModelConfig, positions_S: Tensor) -> Tensor:
    """Return the angle of every position and pair of features, (S, E / 2), in fp64."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float64, device=positions_S.device)
    return torch.outer(positions_S.double(), config.rope_base ** -(pairs / config.head_dim))


def rotate(x_BSHE: Tensor, where: Where) -> Tensor:
    """Rotate every pair (feature i, feature i + E/2) by its position's angle (Su et al. 2021)."""
    half_a, half_b = x_BSHE.chunk(2, dim=-1)
    turned_BSHE = torch.cat((-half_b, half_a), dim=-1)
    return x_BSHE * where.cos_SE[:, None, :] + turned_BSHE * where.sin_SE[:, None, :]


def noise_of(config: TrainConfig) -> TokenNoise | None:
    """Return the noise that a diffusion model is trained with; None: it is a causal one."""
    levels, mask = config.model.noise_levels, config.model.mask_token
    return TokenNoise(levels, mask, config.seed) if levels else None


class Attention(nn.Module):
    """Self-attention, causal or not, in which groups of query heads share a key/value head."""

    def __init__(self, config: ModelConfig, number: int = 0) -> None:
        """Make the four projections of layer `number`."""
        super().__init__()
        self.number = number
        self.head_dim = config.head_dim
        self.query = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(self, x_BSD: Tensor, where: Where) -> Tensor:
        """Apply attention: (B, S, D) in and out."""
        q_BSHE = self.query(x_BSD).unflatten(-1, (-1, self.head_dim))
        k_BSKE = self.key(x_BSD).unflatten(-1, (-1, self.head_dim))
        v_BSKE = self.value(x_BSD).unflatten(-1, (-1, self.head_dim))
        mixed_BHSE = where.context.attend(
            rotate(q_BSHE, where).transpose(1, 2),
            rotate(k_BSKE, where).transpose(1, 2),
            v_BSKE.transpose(1, 2),
            self.number,
        )
        out_BSD: Tensor = self.out(mixed_BHSE.transpose(1, 2).flatten(-2))
        return out_BSD


class FeedForward(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the three projections."""
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Apply the SwiGLU: (B, S, D) in and out."""
        hidden_BSF = functional.silu(self.gate(x_BSD)) * self.up(x_BSD)
        out_BSD: Tensor = self.down(hidden_BSF)
        return out_BSD


class Block(nn.Module):
    """One layer: attention or test-time training, then feed-forward or experts, each pre-normed."""

    def __init__(self, config: TrainConfig, number: int) -> None:
        """Make layer `number`."""
        super().__init__()
        model = config.model
        self.seed, self.rate, self.number = config.seed, model.dropout, number
        self.attention_norm = nn.RMSNorm(model.dim, eps=1e-6)
        learns = number in model.ttt_layers
        self.attention = TttLinear(model) if learns else Attention(model, number)
        self.feed_forward_norm = nn.RMSNorm(model.dim, eps=1e-6)
        self.feed_forward = make_mixture(model) if model.experts else FeedForward(model)
        self.noise = noise_of(config)

    def forward(self, x_BSD: Tensor, samples_B: Tensor, where: Where) -> Tensor:
        """Apply the layer: (B, S, D) in and out."""
        mixed_BSD = self._mix(self.attention_norm(x_BSD), where)
        x_BSD = x_BSD + self._drop(mixed_BSD, 0, samples_B, where)
        fed_BSD = self._feed(self.feed_forward_norm(x_BSD), samples_B)
        return x_BSD + self._drop(fed_BSD, 1, samples_B, where)

    def _mix(self, x_BSD: Tensor, where: Where) -> Tensor:
        learns = isinstance(self.attention, TttLinear)
        mixed_BSD: Tensor = self.attention(x_BSD, where.context if learns else where)
        return mixed_BSD

    def _feed(self, x_BSD: Tensor, samples_B: Tensor) -> Tensor:
        fed_BSD: Tensor
        if self.noise is not None and isinstance(self.feed_forward, MixtureOfExperts):
            fed_BSD = self.feed_forward(x_BSD, self.noise.level(samples_B))
        else:
            fed_BSD = self.feed_forward(x_BSD)
        return fed_BSD

    def _drop(self, x_BSD: Tensor, branch: int, samples_B: Tensor, where: Where) -> Tensor:
        if not self.training:
            return x_BSD
        return dropout(
            x_BSD,
            self.rate,
            seed=self.seed,
            site=2 * self.number + branch,
            samples_B=samples_B,
            positions_S=where.stream_S,
        )


class LanguageModel(nn.Module):
    """The model, or one pipeline stage of it: tokens in, logits out."""

    where: Where

    def __init__(
        self,
        config: TrainConfig,
        layers: Sequence[int] | None = None,
        *,
        first: bool = True,
        last: bool = True,
        recompute: bool = False,
    ) -> None:
        """Make the layers with these global numbers; all of them by default.

        Args:
            config: of the whole model.
            layers: their global numbers.
            first: whether this stage has the embedding.
            last: whether this stage has the last norm and the head.
            recompute: compute activations within layers again in the backward pass.
        """
        super().__init__()
        model = config.model
        numbers = range(model.layers) if layers is None else layers
        self.recompute = recompute
        self.embedding = nn.Embedding(model.vocab, model.dim) if first else None
        self.layers = nn.ModuleDict({str(each): Block(config, each) for each in numbers})
        self.norm = nn.RMSNorm(model.dim, eps=1e-6) if last else None
        self.head = nn.Linear(model.dim, model.vocab, bias=False) if last else None

    def forward(self, x: Tensor, samples_B: Tensor) -> Tensor:
        """Map tokens (B, S), or the previous stage's output (B, S, D), to logits or (B, S, D)."""
        x_BSD = self.embedding(x) if self.embedding is not None else x
        for layer in self.layers.values():
            if self.recompute and torch.is_grad_enabled():
                x_BSD = checkpoint(layer, x_BSD, samples_B, self.where, use_reentrant=False)
            else:
                x_BSD = layer(x_BSD, samples_B, self.where)
        if self.norm is None or self.head is None:
            return x_BSD
        logits_BSV: Tensor = self.head(self.norm(x_BSD))
        return logits_BSV
