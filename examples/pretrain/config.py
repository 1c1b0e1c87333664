"""What is trained: the model's shape, the batch, the optimizer's numbers, and two presets.

Invariant: nothing here depends on a layout. What a layout may not do to these numbers is checked
in one place, `check_layout`, before any process group exists.
"""

from dataclasses import dataclass, replace

import torch

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a Llama-like model over bytes.

    Attributes:
        heads, kv_heads: query heads, and key/value heads that they share in groups (GQA).
        hidden: inner width of the SwiGLU.
        rope_base: wavelengths of the rotary embedding reach 2 pi * rope_base.
    """

    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    seq_len: int
    vocab: int = 256
    rope_base: float = 10_000.0

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that decides the loss curve; equal configs train equal models in any layout.

    Attributes:
        global_batch: samples per optimizer step, over all ranks.
        warmup_steps: the learning rate rises linearly over this many steps, then stays.
        clip_norm: gradients are scaled down to this global norm.
        corpus_bytes: how much text is read.
    """

    model: ModelConfig
    global_batch: int
    learning_rate: float = 3e-4
    warmup_steps: int = 20
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    seed: int = 0
    dtype: str = "fp32"
    corpus_bytes: int = 1 << 20

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step consumes, over all ranks."""
        return self.global_batch * self.model.seq_len


PRESETS = {
    "demo": TrainConfig(
        model=ModelConfig(dim=128, layers=2, heads=4, kv_heads=2, hidden=384, seq_len=32),
        global_batch=8,
    ),
    "tiny": TrainConfig(
        model=ModelConfig(dim=32, layers=4, heads=4, kv_heads=2, hidden=64, seq_len=16),
        global_batch=8,
        corpus_bytes=1 << 16,
    ),
}
"""`demo` has 1 M parameters and learns on two CPU cores; `tiny` is for tests."""


def preset(name: str, *, dtype: str = "fp32", seed: int = 0) -> TrainConfig:
    """Give a preset with another dtype or seed.

    Raises:
        InputInvalid: no such preset or dtype.
    """
    if name not in PRESETS or dtype not in DTYPES:
        raise InputInvalid(
            f"pretrain: preset {name!r} must be one of {', '.join(PRESETS)} "
            f"and dtype {dtype!r} one of {', '.join(DTYPES)}"
        )
    return replace(PRESETS[name], dtype=dtype, seed=seed)


def micro_batch(config: TrainConfig, layout: Layout) -> int:
    """Give the samples per microbatch: the layout's own choice, or two per pipeline stage."""
    share = config.global_batch // layout.data_parallel
    if layout.micro_batch:
        return layout.micro_batch
    count = 2 * layout.pp if layout.pp > 1 and share % (2 * layout.pp) == 0 else layout.pp
    return max(1, share // count)


def check_layout(config: TrainConfig, layout: Layout) -> None:
    """Refuse a layout that this model cannot be trained in.

    Raises:
        InputInvalid: names the rule with its numbers.
    """
    model = config.model
    if layout.cp > 1 or layout.ep > 1:
        raise InputInvalid(f"pretrain: {layout}: this model has no cp or ep; leave them at 1")
    if layout.pp > 1 and layout.schedule not in ("1F1B", "GPipe"):
        raise InputInvalid(f"pretrain: {layout}: schedule {layout.schedule} needs 1F1B or GPipe")
    _divides("kv_heads", model.kv_heads, "tp", layout.tp)
    _divides("layers", model.layers, "pp", layout.pp)
    _divides("global_batch", config.global_batch, "dp_replicate * dp_shard", layout.data_parallel)
    share = config.global_batch // layout.data_parallel
    size = micro_batch(config, layout)
    _divides("samples per data-parallel rank", share, "micro_batch", size)
    if share // size < layout.pp:
        raise InputInvalid(
            f"pretrain: {layout}: {share // size} microbatches of {size} samples cannot fill "
            f"pp = {layout.pp} stages; lower micro_batch or pp"
        )


def _divides(what: str, total: int, by: str, degree: int) -> None:
    """Require that `degree` divides `total`."""
    if total % degree:
        raise InputInvalid(f"pretrain: {what} = {total} is not divisible by {by} = {degree}")
