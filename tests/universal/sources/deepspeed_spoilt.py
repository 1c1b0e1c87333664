"""Ways to spoil a checkpoint of DeepSpeed's with model or expert parallelism, and what is said."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

Content = dict[str, Any]


def spoil(folder: Path, name: str, change: Callable[[Content], Any]) -> None:
    """Change what a file holds."""
    content = torch.load(folder / name, weights_only=False)
    change(content)
    torch.save(content, folder / name)


def swap(folder: Path, one: str, other: str) -> None:
    """Two files change their names."""
    (folder / one).rename(folder / "between")
    (folder / other).rename(folder / one)
    (folder / "between").rename(folder / other)


def layer(number: int, tensor: int = 0) -> str:
    """A layer's file."""
    return f"layer_{number:02d}-model_{tensor:02d}-model_states.pt"


def optim(data: int, model: int) -> str:
    """An optimizer file."""
    return f"zero_pp_rank_{data}_mp_rank_{model:02d}_optim_states.pt"


def expert(mixture: int, number: int) -> str:
    """An expert's file."""
    return f"layer_{mixture}_expert_{number}_mp_rank_00_model_states.pt"


def spoil_all(folder: Path, names: Sequence[str], change: Callable[[Content], Any]) -> None:
    """Change what several files hold."""
    for name in names:
        spoil(folder, name, change)


def one_bit(content: Content, key: str) -> None:
    """The lowest bit of a tensor's first element."""
    content[key].view(-1)[:1].view(torch.uint8)[0] ^= 1


SPOILT_FILES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "two layers swapped": ("pipe", lambda at: swap(at, layer(4), layer(7)), "another layer"),
    "layers of two shapes swapped": (
        "pipe", lambda at: swap(at, layer(4), layer(5)), "another layer",
    ),
    "a bit in a layer": (
        "pipe",
        lambda at: spoil(at, layer(5), lambda it: one_bit(it, "weight")),
        "layer_05.*not the cast",
    ),
    "a bit in a shared layer": (
        "pipe",
        lambda at: spoil(at, layer(0), lambda it: one_bit(it, "weight")),
        "layer_00.*tied_modules.embed",
    ),
    "a bit in a tie": (
        "pipe",
        lambda at: spoil(at, layer(1), lambda it: one_bit(it, "two.weight")),
        "1.two.weight is tied to 1.one.weight, but differs",
    ),
    "a bit in a shared master": (
        "pipe",
        lambda at: spoil(
            at, optim(0, 1), lambda it: one_bit(
                {"it": it["optimizer_state_dict"]["single_partition_of_fp32_groups"][0]}, "it")
        ),
        "tied_modules.scale.weight .param.: stage 0 and stage 1",
    ),
    "a bit in a copy": (
        "auto",
        lambda at: spoil(
            at, optim(0, 1), lambda it: one_bit(
                it["optimizer_state_dict"]["base_optimizer_state"]["state"][0], "exp_avg")
        ),
        "embed.weight .exp_avg.: tensor-parallel rank 0 and",
    ),
    "a name lost in a layer": (
        "pipe", lambda at: spoil(at, layer(4), lambda it: it.pop("bias")), "holds no '4.bias'",
    ),
    "a shape": (
        "pipe",
        lambda at: spoil(at, layer(5), lambda it: it.update(bias=torch.zeros(5))),
        r"5.bias has shape \(5,\)",
    ),
    "stages swapped": ("pipe", lambda at: swap(at, optim(0, 0), optim(0, 1)), "is mapped"),
    "ranks swapped": ("pipe", lambda at: swap(at, optim(0, 1), optim(1, 1)), "is mapped|continue"),
    "a stage of another step": (
        "pipe",
        lambda at: spoil(at, "mp_rank_01_model_states.pt", lambda it: it.update(global_steps=1)),
        "say global_steps is 2 and 1",
    ),
    "stages that are tensor-parallel ranks": (
        "pipe",
        lambda at: spoil(
            at,
            "mp_rank_00_model_states.pt",
            lambda it: it.update(checkpoint_parallel_dimensions={"pp_degree": 1, "tp_degree": 2}),
        ),
        "says 1 pipeline stages and tensor parallelism 2",
    ),
    "a tie that is not said": (
        "pipe",
        lambda at: spoil(at, "mp_rank_00_model_states.pt", lambda it: it.update(shared_params={})),
        "1.two.weight is frozen or tied to 1.one.weight",
    ),
    "infos that differ": (
        "auto",
        lambda at: spoil(
            at,
            "mp_rank_01_model_states.pt",
            lambda it: it["universal_checkpoint_info"]["tp_replicated_parameter_patterns"].pop(),
        ),
        "different universal_checkpoint_info",
    ),
    "experts swapped": (
        "experts", lambda at: swap(at, expert(0, 0), expert(0, 1)), "not expert 0's"
    ),
    "what an expert holds in another order": (
        "experts",
        lambda at: spoil_all(
            at,
            [expert(0, 0), expert(0, 1)],
            lambda it: it.update({key: value.flip(0) for key, value in it.items()}),
        ),
        "not the casts of what the optimizer files hold",
    ),
    "a bit in an expert": (
        "experts",
        lambda at: spoil(at, expert(1, 3), lambda it: one_bit(it, sorted(it)[0])),
        "not the casts",
    ),
    "experts' ranks swapped": (
        "experts", lambda at: swap(at, optim(0, 0), optim(1, 0)), "continue|not the casts"
    ),
    "experts' ranks swapped among replicas": (
        "experts", lambda at: swap(at, optim(1, 0), optim(3, 0)), "continue|not the casts"
    ),
    "experts of AutoEP": (
        "experts",
        lambda at: spoil(
            at, "mp_rank_00_model_states.pt", lambda it: it.update(ds_autoep_layers=[{}])
        ),
        "AutoEP, which is not supported",
    ),
    "experts of tensor-parallel ranks": (
        "experts",
        lambda at: (at / expert(0, 0)).rename(at / expert(0, 0).replace("rank_00", "rank_01")),
        "mixture of experts with tensor parallelism",
    ),
    "a layer of eleven digits": (
        "pipe", lambda at: (at / layer(8)).rename(at / layer(99_999_999_999)), "so many"
    ),
    "an expert of eleven digits": (
        "experts",
        lambda at: (at / expert(0, 3)).rename(at / expert(0, 99_999_999_999)),
        "layer_0_expert_3_.*is missing",
    ),
    "a tensor-parallel rank of eleven digits": (
        "pipe-tensor",
        lambda at: (at / layer(5, 1)).rename(at / layer(5, 99_999_999_999)),
        "its files are of",
    ),
    "a copy that the info leaves out": (
        "split",
        lambda at: spoil_all(
            at,
            ["mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"],
            lambda it: it["universal_checkpoint_info"][
                "tp_replicated_parameter_patterns"].remove("mix"),
        ),
        "mix.weight: .*but all ranks hold the same",
    ),
}  # fmt: skip
"""What is spoilt: run, change of its folder, words of the refusal."""
