"""Shapes of models that are known by name. Pure.

Where a model's columns (layers, hidden, ...) are given, they win; what columns do not say (latent
attention, windows, shared experts, layers without experts) comes from here, by the beginning of a
name. Sources: the models' `config.json`.
"""

from dataclasses import replace

from wattmesh.policies.parallelism.model_shape import ModelShape

LLAMA3 = ModelShape(
    layers=80, hidden=8192, heads=64, kv_heads=8, head_width=128, ffn=28672, vocab=128256
)
QWEN3 = ModelShape(
    layers=48,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_width=128,
    ffn=6144,
    vocab=151936,
    experts=128,
    topk=8,
    expert_ffn=768,
)
DEEPSEEK_V3 = ModelShape(
    layers=61,
    hidden=7168,
    heads=128,
    kv_heads=128,
    head_width=128,
    ffn=18432,
    vocab=129280,
    experts=256,
    topk=8,
    expert_ffn=2048,
    shared_ffn=2048,
    dense_layers=3,
    latent=1,
)
GPT_OSS_120B = ModelShape(
    layers=36,
    hidden=2880,
    heads=64,
    kv_heads=8,
    head_width=64,
    ffn=2880,
    vocab=201088,
    experts=128,
    topk=4,
    expert_ffn=2880,
    window=128,
)

PRESETS = {
    "llama3-8b": replace(LLAMA3, layers=32, hidden=4096, heads=32, ffn=14336),
    "llama3-70b": LLAMA3,
    "llama3.1-405b": replace(LLAMA3, layers=126, hidden=16384, heads=128, ffn=53248),
    "gpt3-175b": ModelShape(
        layers=96,
        hidden=12288,
        heads=96,
        kv_heads=96,
        head_width=128,
        ffn=49152,
        vocab=51200,
        gated=0,
    ),
    "mixtral-8x22b": ModelShape(
        layers=56,
        hidden=6144,
        heads=48,
        kv_heads=8,
        head_width=128,
        ffn=16384,
        vocab=32768,
        experts=8,
        topk=2,
        expert_ffn=16384,
    ),
    "qwen3-30b-a3b": QWEN3,
    "qwen3-235b-a22b": replace(QWEN3, layers=94, hidden=4096, heads=64, ffn=12288, expert_ffn=1536),
    "deepseek-v3": DEEPSEEK_V3,
    "kimi-k2": replace(
        DEEPSEEK_V3, heads=64, kv_heads=64, vocab=163840, experts=384, dense_layers=1
    ),
    "deepseek-v2": replace(
        DEEPSEEK_V3,
        layers=60,
        hidden=5120,
        ffn=12288,
        vocab=102400,
        experts=160,
        topk=6,
        expert_ffn=1536,
        shared_ffn=3072,
        dense_layers=1,
    ),
    "gpt-oss-120b": GPT_OSS_120B,
    "llama4-maverick": ModelShape(
        layers=48,
        hidden=5120,
        heads=40,
        kv_heads=8,
        head_width=128,
        ffn=16384,
        vocab=202048,
        experts=128,
        topk=1,
        expert_ffn=8192,
        shared_ffn=8192,
        dense_layers=24,
    ),
}


def preset(name: str) -> ModelShape | None:
    """Find a shape by name; None when there is none."""
    return PRESETS.get(name.strip().lower())


def preset_of_sizes(shape: ModelShape) -> ModelShape | None:
    """Find a model with experts by its sizes, whatever it is called; None when there is none."""

    def sizes(one: ModelShape) -> tuple[object, ...]:
        return (one.hidden, one.heads, one.experts, one.topk, one.expert_ffn)

    if not shape.experts:
        return None
    return next((each for each in PRESETS.values() if sizes(each) == sizes(shape)), None)
