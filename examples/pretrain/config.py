"""What is trained: the model's shape, the batch, the optimizer's settings, and the presets.

Invariant: no setting here depends on a layout. Whether a layout fits them is checked in one place,
`check_layout`, before any process group exists.
"""

from dataclasses import dataclass, replace

import torch

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.context_parallel.ulysses import head_problem
from wattmesh.integrations.pytorch.pipeline import schedule_problem, stage_count
from wattmesh.reconfig.layout import Layout

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a Llama-like model over bytes.

    Attributes:
        heads, kv_heads: query heads, and key/value heads that they share in groups (GQA).
        hidden: inner width of the SwiGLU, or of each expert's SwiGLU.
        rope_base: the longest wavelength of the rotary embedding approaches 2 pi * rope_base.
        experts: per layer, of which each token uses `experts_per_token`; 0 makes a dense model.
        bottleneck: the model has maps that make a token's features so many times fewer between
            ranks, in layouts with as large an `ep_bottleneck`; 0: none.
        noise_levels: of a masked-diffusion model, whose last token is the mask; it sees all
            positions, and routers see the level. 0 makes a causal model.
        dropout: rate on both branches of every layer, drawn by logical position.
        ttt_layers: numbers of the layers with test-time training instead of attention, of a causal
            model.
        ttt_chunk: tokens whose inner gradients are taken at the same weights.
    """

    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    seq_len: int
    vocab: int = 256
    rope_base: float = 10_000.0
    experts: int = 0
    experts_per_token: int = 2
    bottleneck: int = 0
    noise_levels: int = 0
    dropout: float = 0.0
    ttt_layers: tuple[int, ...] = ()
    ttt_chunk: int = 4

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    @property
    def mask_token(self) -> int:
        """What stands for a masked token in a diffusion model."""
        return self.vocab - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that determines the loss curve; equal configs train equal models in any layout.

    Attributes:
        global_batch: samples per optimizer step, over all ranks.
        warmup_steps: the learning rate rises linearly over this many steps, then stays.
        clip_norm: gradients with a larger global norm are scaled down to this norm.
        router_bias_rate: how much a router's bias moves per step towards equal load.
        ema_decay: decay of the parameters' exponential moving average; 0 keeps none.
        corpus_bytes: size of the text that is read.
    """

    model: ModelConfig
    global_batch: int
    learning_rate: float = 3e-4
    warmup_steps: int = 20
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    router_bias_rate: float = 1e-3
    ema_decay: float = 0.99
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
    "tiny-moe": TrainConfig(
        model=ModelConfig(
            dim=32, layers=4, heads=4, kv_heads=2, hidden=32, seq_len=16, experts=4, dropout=0.1
        ),
        global_batch=8,
        corpus_bytes=1 << 16,
    ),
    "tiny-diffusion": TrainConfig(
        model=ModelConfig(
            dim=32,
            layers=4,
            heads=4,
            kv_heads=2,
            hidden=64,
            seq_len=16,
            vocab=264,
            noise_levels=16,
            dropout=0.1,
        ),
        global_batch=8,
        corpus_bytes=1 << 16,
    ),
    "tiny-diffusion-moe": TrainConfig(
        model=ModelConfig(
            dim=32,
            layers=4,
            heads=4,
            kv_heads=2,
            hidden=32,
            seq_len=16,
            vocab=264,
            experts=4,
            noise_levels=16,
        ),
        global_batch=8,
        corpus_bytes=1 << 16,
    ),
    "tiny-ttt": TrainConfig(
        model=ModelConfig(
            dim=32, layers=4, heads=4, kv_heads=2, hidden=64, seq_len=32, ttt_layers=(0, 2)
        ),
        global_batch=8,
        corpus_bytes=1 << 16,
    ),
    "tiny-narrow": TrainConfig(
        model=ModelConfig(
            dim=64, layers=4, heads=4, kv_heads=2, hidden=32, seq_len=16, experts=4, bottleneck=4
        ),
        global_batch=8,
        corpus_bytes=1 << 16,
    ),
    "bench": TrainConfig(
        model=ModelConfig(
            dim=128, layers=4, heads=4, kv_heads=2, hidden=128, seq_len=32, experts=4
        ),
        global_batch=8,
        corpus_bytes=1 << 18,
    ),
    "bench-gigabyte": TrainConfig(
        model=ModelConfig(dim=1024, layers=8, heads=8, kv_heads=4, hidden=2816, seq_len=32),
        global_batch=8,
        corpus_bytes=1 << 18,
    ),
    "llama3-8b": TrainConfig(
        model=ModelConfig(
            dim=4096,
            layers=32,
            heads=32,
            kv_heads=8,
            hidden=14_336,
            seq_len=8192,
            vocab=128_256,
            rope_base=500_000.0,
        ),
        global_batch=128,
        ema_decay=0.0,
    ),
}
"""`demo` has 0.5 M parameters and learns on two CPU cores; the `tiny` ones are for tests, two of
them masked-diffusion models, `tiny-ttt` with test-time-training layers, `tiny-narrow` with maps for
narrow dispatch; `bench` and `bench-gigabyte` (1.5 GB of state) serve to measure switches;
`llama3-8b` has the shape of Llama 3 8B (Grattafiori et al. 2024, table 3)."""


def preset(name: str, *, dtype: str = "fp32", seed: int = 0) -> TrainConfig:
    """Return a preset with the given dtype and seed.

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
    """Return samples per microbatch: as the layout says, or for 2 * pp (else pp) microbatches."""
    share = config.global_batch // layout.data_parallel
    if layout.micro_batch:
        return layout.micro_batch
    count = 2 * layout.pp if layout.pp > 1 and share % (2 * layout.pp) == 0 else layout.pp
    return max(1, share // count)


def check_layout(config: TrainConfig, layout: Layout) -> None:
    """Check that this model can be trained in a layout.

    Raises:
        InputInvalid: it cannot; the message names the rule with its numbers.
    """
    model = config.model
    _divides("kv_heads", model.kv_heads, "tp", layout.tp)
    _divides("hidden", model.hidden, "tp", layout.tp)
    _divides("vocab", model.vocab, "tp", layout.tp)
    if layout.cp > 1:
        _divides("seq_len", model.seq_len, "2 * cp", 2 * layout.cp)
        _check_heads(model, layout)
    _check_ttt(model, layout)
    _divides("positions per cp rank", model.seq_len // layout.cp, "tp", layout.tp)
    _divides("layers", model.layers, _stages(layout), stage_count(layout))
    _check_experts(model, layout)
    _check_batch(config, layout)


def _check_heads(model: ModelConfig, layout: Layout) -> None:
    """Check that a method that splits heads over cp can."""
    if layout.cp_method == "ulysses":
        heads, kv_heads = model.heads // layout.tp, model.kv_heads // layout.tp
        for ranks in sorted(set(layout.cp_by_layer) or {layout.cp}):
            if problem := head_problem(heads, kv_heads, ranks):
                raise InputInvalid(f"pretrain: {layout}: {problem}; use ring or gather")


def _check_ttt(model: ModelConfig, layout: Layout) -> None:
    """Check that no rank holds a part of a chunk, and that states go over all of cp."""
    if not model.ttt_layers:
        return
    pieces = 2 * layout.cp if layout.cp > 1 else 1
    _divides("seq_len", model.seq_len, "ttt_chunk * pieces", model.ttt_chunk * pieces)
    degrees = layout.cp_by_layer
    for number in model.ttt_layers:
        if number < len(degrees) and degrees[number] != layout.cp:
            raise InputInvalid(
                f"pretrain: {layout}: cp_layers = {layout.cp_layers!r:.40} puts layer {number} "
                f"over {degrees[number]} of cp = {layout.cp} ranks, but a test-time-training layer "
                "goes over all of them"
            )


def _check_experts(model: ModelConfig, layout: Layout) -> None:
    """Check experts, split by number over ep, then by their two widths over the other ranks."""
    if layout.ep_bottleneck not in (1, model.bottleneck):
        raise InputInvalid(
            f"pretrain: {layout}: ep_bottleneck = {layout.ep_bottleneck} needs maps that make "
            f"tokens so many times narrower; this model's are for {model.bottleneck or 'none'}"
        )
    if model.bottleneck > model.dim:
        raise InputInvalid(
            f"pretrain: bottleneck = {model.bottleneck} leaves none of {model.dim} features"
        )
    if not model.experts:
        if layout.ep > 1:
            raise InputInvalid(f"pretrain: {layout}: this model has no experts; leave ep at 1")
        return
    _divides("experts", model.experts, "ep", layout.ep)
    rest = layout.dp_shard * layout.cp * layout.tp // layout.ep
    _divides("width of an expert", model.hidden, "dp_shard * cp * tp / ep", rest)
    _divides("dim", model.dim, "dp_shard * cp * tp / ep", rest)


def _check_batch(config: TrainConfig, layout: Layout) -> None:
    """Check that samples divide evenly over ranks and microbatches, and fill the pipeline."""
    _divides("global_batch", config.global_batch, "dp_replicate * dp_shard", layout.data_parallel)
    share = config.global_batch // layout.data_parallel
    size = micro_batch(config, layout)
    _divides("samples per data-parallel rank", share, "micro_batch", size)
    degrees = layout.cp_by_layer
    if degrees:
        if len(degrees) != config.model.layers:
            raise InputInvalid(
                f"pretrain: {layout}: cp_layers = {layout.cp_layers!r:.40} names {len(degrees)} "
                f"layers of {config.model.layers}"
            )
        for degree in sorted(set(degrees)):
            _divides("micro_batch", size, "cp / cp_layers", layout.cp // degree)
    problem = schedule_problem(layout, share // size)
    if problem:
        raise InputInvalid(
            f"pretrain: {layout}: {share // size} microbatches of {size} samples {problem}; lower "
            "micro_batch or pp"
        )


def _stages(layout: Layout) -> str:
    """Name what divides the layers, for an error message."""
    each = stage_count(layout) // layout.pp
    return "pp" if each == 1 else f"{each} stages on each of pp = {layout.pp} ranks, stages"


def _divides(what: str, total: int, by: str, degree: int) -> None:
    if total % degree:
        raise InputInvalid(f"pretrain: {what} = {total} is not divisible by {by} = {degree}")
