"""A Llama-like language model: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

Plain PyTorch without a word about parallelism; `parallel.py` shards it from outside. Two things
make that possible: layers live in a ModuleDict under their *global* number, so that a parameter
has one name on whatever pipeline stage it sits, and head counts are read from the weights' outputs
(`-1`), so that a tensor-parallel rank sees its share.

Shape suffixes:
    B batch    S sequence     D model width    V vocabulary    F hidden width
    H query heads    K key/value heads    E head width     (H, K, F: this tensor-parallel rank's)
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.pretrain.config import DTYPES, ModelConfig, TrainConfig


def rotary_angles(config: ModelConfig) -> Tensor:
    """Give the angle of every position and pair of features, (S, E / 2), in fp64."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    positions = torch.arange(config.seq_len, dtype=torch.float64)
    return torch.outer(positions, config.rope_base**-exponents)


def rotate(x_BSHE: Tensor, cos_SE: Tensor, sin_SE: Tensor) -> Tensor:
    """Turn every pair (feature i, feature i + E/2) by its position's angle (Su et al. 2021)."""
    half_a, half_b = x_BSHE.chunk(2, dim=-1)
    turned_BSHE = torch.cat((-half_b, half_a), dim=-1)
    return x_BSHE * cos_SE[:, None, :] + turned_BSHE * sin_SE[:, None, :]


class Attention(nn.Module):
    """Causal self-attention in which groups of query heads share a key/value head."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the four projections."""
        super().__init__()
        self.head_dim = config.head_dim
        self.query = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(self, x_BSD: Tensor, cos_SE: Tensor, sin_SE: Tensor) -> Tensor:
        """Mix positions: (B, S, D) in and out."""
        q_BSHE = self.query(x_BSD).unflatten(-1, (-1, self.head_dim))
        k_BSKE = self.key(x_BSD).unflatten(-1, (-1, self.head_dim))
        v_BSKE = self.value(x_BSD).unflatten(-1, (-1, self.head_dim))
        mixed_BHSE = functional.scaled_dot_product_attention(
            rotate(q_BSHE, cos_SE, sin_SE).transpose(1, 2),
            rotate(k_BSKE, cos_SE, sin_SE).transpose(1, 2),
            v_BSKE.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
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
        """Mix features: (B, S, D) in and out."""
        hidden_BSF = functional.silu(self.gate(x_BSD)) * self.up(x_BSD)
        out_BSD: Tensor = self.down(hidden_BSF)
        return out_BSD


class Block(nn.Module):
    """One layer: attention, then feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: ModelConfig) -> None:
        """Make one layer."""
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=1e-6)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=1e-6)
        self.feed_forward = FeedForward(config)

    def forward(self, x_BSD: Tensor, cos_SE: Tensor, sin_SE: Tensor) -> Tensor:
        """Apply the layer: (B, S, D) in and out."""
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), cos_SE, sin_SE)
        out_BSD: Tensor = x_BSD + self.feed_forward(self.feed_forward_norm(x_BSD))
        return out_BSD


class LanguageModel(nn.Module):
    """The model, or the stage of it that `keep_stage` leaves: bytes in, logits out.

    The same seed gives the same parameters whatever the layout: every rank draws the whole model,
    then keeps its part.
    """

    def __init__(self, config: TrainConfig) -> None:
        """Draw all parameters from `config.seed`."""
        super().__init__()
        model = config.model
        self.embedding: nn.Embedding | None = nn.Embedding(model.vocab, model.dim)
        self.layers = nn.ModuleDict({str(i): Block(model) for i in range(model.layers)})
        self.norm: nn.RMSNorm | None = nn.RMSNorm(model.dim, eps=1e-6)
        self.head: nn.Linear | None = nn.Linear(model.dim, model.vocab, bias=False)
        self._draw(config)
        angles_SE = rotary_angles(model).repeat(1, 2)
        self.register_buffer("cos_SE", angles_SE.cos().to(DTYPES[config.dtype]), persistent=False)
        self.register_buffer("sin_SE", angles_SE.sin().to(DTYPES[config.dtype]), persistent=False)

    def _draw(self, config: TrainConfig) -> None:
        """Set every matrix from one generator; projections into the residual start smaller."""
        generator = torch.Generator().manual_seed(config.seed)
        self.to(DTYPES[config.dtype])
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # norms stay at one
            into_residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
            scale = 1 / math.sqrt(2 * config.model.layers) if into_residual else 1.0
            nn.init.normal_(parameter, std=0.02 * scale, generator=generator)

    def keep_stage(self, stage: int, stages: int) -> None:
        """Drop what pipeline stage `stage` of `stages` does not hold; names stay global."""
        per_stage = len(self.layers) // stages
        for name in list(self.layers):
            if int(name) // per_stage != stage:
                del self.layers[name]
        if stage > 0:
            self.embedding = None
        if stage < stages - 1:
            self.norm = self.head = None

    def forward(self, x: Tensor) -> Tensor:
        """Map bytes (B, S), or the stage before's output (B, S, D), to logits or to (B, S, D)."""
        x_BSD = self.embedding(x) if self.embedding is not None else x
        for layer in self.layers.values():
            x_BSD = layer(x_BSD, self.cos_SE, self.sin_SE)
        if self.norm is None or self.head is None:
            return x_BSD
        logits_BSV: Tensor = self.head(self.norm(x_BSD))
        return logits_BSV
