"""The sizes of a transformer that decide what training it costs. Pure.

Every field is a number, or an array with one entry per configuration; counts that come out have
the shape that numpy gives them.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Number: TypeAlias = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of equal layers, dense or with experts.

    Attributes:
        layers, hidden, heads, kv_heads, vocab: as in a model's config.
        head_width: of one query head; `heads * head_width` need not be `hidden`.
        ffn: width of a dense layer's feed-forward part. `gated`: 1 where it has three matrices, 0
            where it has two.
        experts: per layer; 0 where there are none. `topk`: experts that a token goes to.
        expert_ffn, shared_ffn: width of one expert, and of what every token passes beside them.
        dense_layers: layers of `layers` that have `ffn` although the model has experts.
        latent: 1 where keys and values go through a common latent vector (multi-head latent
            attention of DeepSeek), 0 where they do not.
        window: tokens that every second layer looks back at most; 0: all of them look back on all.
    """

    layers: Number
    hidden: Number
    heads: Number
    kv_heads: Number
    head_width: Number
    ffn: Number
    vocab: Number
    gated: Number = 1.0
    experts: Number = 0.0
    topk: Number = 0.0
    expert_ffn: Number = 0.0
    shared_ffn: Number = 0.0
    dense_layers: Number = 0.0
    latent: Number = 0.0
    window: Number = 0.0


Q_RANK, KV_RANK, ROPE, NOPE, VALUE = 1536.0, 512.0, 64.0, 128.0, 128.0
"""Widths of latent attention, the same in DeepSeek-V2, V3 and Kimi K2 (their config.json)."""


def matrices(shape: ModelShape) -> Number:
    """Count the matrices of a feed-forward part."""
    return 2.0 + np.asarray(shape.gated)


def moe_share(shape: ModelShape) -> Number:
    """Give the share of layers that have experts."""
    layers = np.maximum(shape.layers, 1)
    return np.where(np.asarray(shape.experts) > 0, 1 - np.asarray(shape.dense_layers) / layers, 0.0)


def attention_weights(shape: ModelShape) -> Number:
    """Count the parameters of one layer's attention."""
    hidden, heads = np.asarray(shape.hidden), np.asarray(shape.heads)
    queries, keys = heads * shape.head_width, np.asarray(shape.kv_heads) * shape.head_width
    plain = 2 * hidden * queries + 2 * hidden * keys
    up = Q_RANK * heads * (NOPE + ROPE) + KV_RANK * heads * (NOPE + VALUE)
    latent = hidden * (Q_RANK + KV_RANK + ROPE + heads * VALUE) + up
    return np.where(np.asarray(shape.latent) > 0, latent, plain)


def score_width(shape: ModelShape) -> Number:
    """Give the width of all heads in the product of queries, keys and values: half of both."""
    heads = np.asarray(shape.heads)
    latent = heads * (NOPE + ROPE + VALUE) / 2
    return np.where(np.asarray(shape.latent) > 0, latent, heads * shape.head_width)


def feed_forward_weights(shape: ModelShape) -> Number:
    """Count an average layer's feed-forward parameters that every token passes; no experts."""
    with_experts = moe_share(shape)
    own = (1 - with_experts) * np.asarray(shape.ffn) + with_experts * np.asarray(shape.shared_ffn)
    return matrices(shape) * np.asarray(shape.hidden) * own


def expert_weights(shape: ModelShape) -> Number:
    """Count the parameters of all experts of an average layer."""
    each = matrices(shape) * np.asarray(shape.hidden) * np.asarray(shape.expert_ffn)
    return np.asarray(moe_share(shape) * each * np.asarray(shape.experts))


def parameters(shape: ModelShape) -> Number:
    """Count all parameters; input and output embeddings are counted apart."""
    layer = attention_weights(shape) + feed_forward_weights(shape) + expert_weights(shape)
    return np.asarray(shape.layers) * layer + 2 * np.asarray(shape.vocab) * shape.hidden
