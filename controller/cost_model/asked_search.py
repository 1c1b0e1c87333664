"""What a person asks a search for, as numbers: a model, a cluster, a batch.

Invariant: whatever cannot be searched is refused with the next step, never searched as something
else.
"""

import json
import re
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.named_file import read_named
from wattmesh.policies.parallelism.hardware import GpuClass, gpu_class
from wattmesh.policies.parallelism.model_shape import ModelShape
from wattmesh.policies.parallelism.presets import PRESETS, preset

CLUSTER = re.compile(r"([0-9]{1,6})x([A-Za-z0-9-]{1,40})")
LARGEST_CONFIG_BYTES = 1 << 20
MOST = 10**9
"""No size in a config.json is larger."""

MOST_LAYERS = 10_000
"""Some eighty times as many as the deepest model has; every divisor of them is a layout to try."""

PLAIN = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gpt_oss")
"""Values of `model_type` whose layers the cost model knows from their sizes alone."""

LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2")


def clusters(text: str, *, most: int = 2) -> tuple[tuple[int, GpuClass], ...]:
    """Read `256xh100`, or `128xh100,64xa100`: how many GPUs, and of which class, of each part.

    Raises:
        InputInvalid: it is no such thing, a GPU is not known, or there are more classes than
            `most`.
    """
    parts = tuple(_part(text, part) for part in text.split(",", most))
    if len(parts) > most:
        what = "two" if most == 2 else str(most)
        raise InputInvalid(
            f"--gpus {text!r:.60} has more than {what} classes, which is not searched; search "
            f"{what} of them together"
        )
    if len({gpu.name for _, gpu in parts}) < len(parts):
        raise InputInvalid(f"--gpus {text!r:.60} names one class twice; add its GPUs up")
    return parts


def _part(text: str, part: str) -> tuple[int, GpuClass]:
    found = CLUSTER.fullmatch(part.strip())
    if found is None or int(found[1]) == 0:
        raise InputInvalid(
            f"--gpus {text!r:.60} is not understood; write it like 256xh100, or 128xh100,64xa100"
        )
    try:
        return int(found[1]), gpu_class(found[2])
    except KeyError as error:
        raise InputInvalid(f"--gpus {text!r:.60}: {error.args[0]}") from None


def known_model(name: str) -> ModelShape:
    """Find a model by name.

    Raises:
        InputInvalid: it is not known; the message lists those that are.
    """
    found = preset(name)
    if found is None:
        raise InputInvalid(
            f"--model {name!r:.60} is not known; give its config.json with --hf-config, or one of "
            f"{', '.join(sorted(PRESETS))}"
        )
    return found


def from_hugging_face(path: Path) -> ModelShape:
    """Read the sizes of a model from its `config.json`.

    Raises:
        InputInvalid: the file is none, the architecture is not known, or a size is missing.
    """
    try:
        config = json.loads(read_named(path, LARGEST_CONFIG_BYTES))
    except OSError as error:
        raise InputInvalid(f"--hf-config {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputInvalid(f"--hf-config {path}: no JSON ({error})") from error
    if not isinstance(config, dict):
        raise InputInvalid(f"--hf-config {path}: not the config.json of a model")
    kind = config.get("model_type")
    if kind not in PLAIN + LATENT:
        raise InputInvalid(
            f"--hf-config {path}: model_type {kind!r:.40} is not known; known are "
            f"{', '.join(PLAIN + LATENT)}"
        )
    return _shape(config, path, latent=kind in LATENT)


def _shape(config: dict[str, Any], path: Path, *, latent: bool) -> ModelShape:
    def size(*names: str, default: float | None = None) -> float:
        for name in names:
            value = config.get(name)
            if value is None:
                continue
            if type(value) is not int or not 0 <= value <= MOST:
                raise InputInvalid(f"--hf-config {path}: {name} = {value!r:.40} is no size")
            return float(value)
        if default is None:
            raise InputInvalid(f"--hf-config {path}: {' or '.join(names)} is missing")
        return default

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    layers, ffn = size("num_hidden_layers"), size("intermediate_size")
    kv_heads, vocab = size("num_key_value_heads", default=heads), size("vocab_size")
    experts = size("num_experts", "num_local_experts", "n_routed_experts", default=0)
    topk = size("num_experts_per_tok") if experts else 0.0
    for wrong, what in (
        (not hidden, "hidden_size must be at least 1"),
        (not heads, "num_attention_heads must be at least 1"),
        (not vocab, "vocab_size must be at least 1"),
        (
            not 1 <= layers <= MOST_LAYERS,
            f"num_hidden_layers = {layers:.0f} must be from 1 to {MOST_LAYERS}",
        ),
        (
            not kv_heads or heads % kv_heads != 0,
            f"num_key_value_heads = {kv_heads:.0f} must divide num_attention_heads = {heads:.0f}",
        ),
        (
            bool(experts) and not 1 <= topk <= experts,
            f"num_experts_per_tok = {topk:.0f} must be from 1 to the {experts:.0f} experts",
        ),
    ):
        if wrong:
            raise InputInvalid(f"--hf-config {path}: {what}")
    expert_ffn = size("moe_intermediate_size", default=ffn if experts else 0)
    shared = size("shared_expert_intermediate_size", default=0)
    shared = shared or size("n_shared_experts", default=0) * expert_ffn
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_width=size("head_dim", default=hidden / heads),
        ffn=ffn,
        vocab=vocab,
        experts=experts,
        topk=topk,
        expert_ffn=expert_ffn,
        shared_ffn=shared if experts else 0.0,
        dense_layers=min(layers, size("first_k_dense_replace", default=0)) if experts else 0.0,
        latent=float(latent),
        window=size("sliding_window", default=0) if config["model_type"] == "gpt_oss" else 0.0,
    )
