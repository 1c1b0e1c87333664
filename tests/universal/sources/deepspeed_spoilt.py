"""Ways to spoil a checkpoint of DeepSpeed's with model or expert parallelism, and what is said."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
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


def model(rank: int) -> str:
    """A model file."""
    return f"mp_rank_{rank:02d}_model_states.pt"


def copy_all(folder: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """Files take the place of others."""
    for source, target in pairs:
        shutil.copy(folder / source, folder / target)


def slots(content: Content, group: int = 0) -> Content:
    """The slots of a group."""
    found: Content = content["optimizer_state_dict"]["base_optimizer_state"]["state"][group]
    return found


def number_slots(folder: Path) -> None:
    """Every stage has a slot that is a plain number, each another one."""
    for stage in (0, 1):
        files = [optim(data, stage) for data in (0, 1)]
        spoil_all(folder, files, partial(_number, number=stage))


def _number(content: Content, number: int) -> None:
    slots(content)["k"] = number


def short_slots(content: Content) -> None:
    """Slots that end before their master, and a padding that makes them seem whole."""
    held = content["optimizer_state_dict"]
    held["group_paddings"] = [-1]
    for slot in ("exp_avg", "exp_avg_sq"):
        slots(content)[slot] = slots(content)[slot][:-1].clone()


def one_more_expert(folder: Path, mixture: str, number: int, target: str) -> None:
    """A file of an earlier save, that had more of them."""
    content = torch.load(folder / expert(0, 3), weights_only=False)
    named = {
        key.replace("layers.0.", mixture).replace(".3.", f".{number}."): value
        for key, value in content.items()
    }
    torch.save(named, folder / target)


def doubled(depth: int) -> list[Any]:
    """A list that is small in a file, and takes for ever to be compared with another."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found, found]
    return found


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
    "optimizer files of another tensor-parallel rank": (
        "auto",
        lambda at: copy_all(at, [(optim(rank, 0), optim(rank, 1)) for rank in (0, 1)]),
        "mp_rank_01_model_states.pt: its .* not the cast .* another rank",
    ),
    "a tensor-parallel rank that is another's copy": (
        "auto",
        lambda at: copy_all(
            at, [(model(0), model(1)), *((optim(rank, 0), optim(rank, 1)) for rank in (0, 1))]
        ),
        "stage 0: tensor-parallel ranks 0 and 1 hold the same of all slices",
    ),
    "a stage's tensor-parallel rank that is another's copy": (
        "pipe-tensor",
        lambda at: copy_all(
            at,
            [
                (model(2), model(3)),
                (optim(0, 2), optim(0, 3)),
                *((layer(number, 0), layer(number, 1)) for number in (5, 6, 7, 8)),
            ],
        ),
        "stage 1: tensor-parallel ranks 0 and 1 hold the same of all slices",
    ),
    "a stage at another step": (
        "pipe-bf16",
        lambda at: spoil(at, f"bf16_{optim(0, 1)}", lambda it: slots(it)["step"].fill_(7)),
        "rank 0 is at step 2, that of model-parallel rank 1 at 7",
    ),
    "a stage that lost its slots": (
        "pipe",
        lambda at: spoil_all(at, [optim(0, 1), optim(1, 1)], lambda it: slots(it).clear()),
        "rank 0 is at step 2, that of model-parallel rank 1 at none",
    ),
    "experts at another step": (
        "experts",
        lambda at: spoil_all(
            at, [optim(rank, 0) for rank in range(4)], lambda it: slots(it, 1)["step"].fill_(7)
        ),
        "rank 0 is at step 2, that of experts' rank 0 at 7",
    ),
    "a dense partition of another step": (
        "experts",
        lambda at: spoil(
            at, optim(1, 0), lambda it: it["optimizer_state_dict"][
                "single_partition_of_fp32_groups"][0].data.add_(1)
        ),
        "mp_rank_00_model_states.pt: its .* not the cast .* another rank or another step",
    ),
    "slots that end before their master": (
        "pipe", lambda at: spoil(at, optim(1, 0), short_slots), "group_paddings are not those",
    ),
    "an expert of an earlier save": (
        "experts",
        lambda at: one_more_expert(at, "layers.0.", 4, expert(0, 4)),
        "experts.4: of it and expert 0, the optimizer files hold only one's",
    ),
    "a mixture of an earlier save": (
        "experts",
        lambda at: one_more_expert(at, "layers.7.", 0, expert(2, 0)),
        "layers.7.* the model's file holds no gate for them",
    ),
    "a frozen parameter of one expert lost": (
        "experts",
        lambda at: spoil(
            at, expert(0, 1), lambda it: it.pop(next(key for key in it if "frozen" in key))
        ),
        "experts.1: of it and expert 0, only one has .frozen",
    ),
    "a rank in digits that are not DeepSpeed's": (
        "pipe",
        lambda at: (at / optim(0, 0)).rename(at / optim(0, 0).replace("rank_0_", "rank_\u0660_")),
        "file of rank 0 .model-parallel rank 0. is missing",
    ),
    "copies that are far larger than their files": (
        "auto",
        lambda at: spoil_all(
            at,
            [model(0), model(1)],
            lambda it: it["module"].update(seen=torch.zeros(1).expand(9 << 20)),
        ),
        "repeat the same bytes over and over",
    ),
    "numbers that differ between stages": (
        "pipe", number_slots, "stage 1 holds other numbers of it"
    ),
    "a stage that lost a moment": (
        "pipe-bf16",
        lambda at: spoil(at, f"bf16_{optim(0, 1)}", lambda it: slots(it).pop("exp_avg")),
        "lacks the optimizer slots exp_avg",
    ),
    "experts' numbers with a gap": (
        "experts",
        lambda at: spoil(
            at,
            model(0),
            lambda it: it.update(param_shapes=[
                {key.replace("experts.1.", "experts.2."): shape for key, shape in group.items()}
                for group in it["param_shapes"]
            ]),
        ),
        "a rank's are not numbered 0 to 1",
    ),
    "counts of partitions that differ between ranks": (
        "experts",
        lambda at: spoil(
            at, optim(1, 0), lambda it: it["optimizer_state_dict"].update(partition_count=[4, 4])
        ),
        "its groups are partitioned over",
    ),
    "a stage with a module": (
        "pipe",
        lambda at: spoil(at, model(1), lambda it: it.update(module={})),
        "some ranks' files hold a module, others do not",
    ),
    "settings that differ between stages": (
        "pipe",
        lambda at: spoil_all(
            at,
            [optim(0, 1), optim(1, 1)],
            lambda it: it["optimizer_state_dict"]["base_optimizer_state"]["param_groups"][0].update(
                lr=9.0
            ),
        ),
        "has other settings for tied_modules",
    ),
    "steps that take for ever to compare": (
        "pipe",
        lambda at: spoil_all(
            at, [model(0), model(1)], lambda it: it.update(global_steps=doubled(60))
        ),
        "rank 0 says global_steps is a list, which is no number",
    ),
    "a slot of a reserved name": (
        "pipe",
        lambda at: spoil_all(
            at,
            [optim(data, rank) for data in (0, 1) for rank in (0, 1)],
            lambda it: slots(it).update({"average.x": torch.ones(1)}),
        ),
        "slot 'average.x': a slot may not have this name",
    ),
}  # fmt: skip
"""What is spoilt: run, change of its folder, words of the refusal."""

STRANGE: tuple[Any, ...] = (
    None, 5, -1, 1 << 70, True, "a", "(a*)*b", ".*.*.*x", b"y", [], {}, (), 1.5, [None], {0: 1},
    [[1]], [-1], [1 << 60], {"a": "b"},
)  # fmt: skip
"""Values for any place in DeepSpeed's info."""

MISPLACED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "blocks in another order": lambda it: it["ranks"][0]["pieces"][0].update(source=[36, [6, 1]]),
    "a piece that is lost": lambda it: it["ranks"][1]["pieces"].pop(),
    "columns for rows": lambda it: it["ranks"][0]["pieces"][0].update(dest=[0, [1, 6]]),
    "a piece elsewhere in its part": lambda it: it["ranks"][0]["pieces"][1].update(
        dest=[30, [6, 1]]
    ),
}
"""What AutoTP's map of a fused weight must not say."""

UNWRITTEN: dict[str, tuple[Callable[[Content], Any], str]] = {
    "a weight without a map": (
        lambda it: it["affine_map"]["params"].pop(r"^fused\.weight$"),
        "fused.weight: .*has no map of it",
    ),
    "another version": (lambda it: it["affine_map"].update(version=2), "has version 2, not 1"),
    "what cannot be joined": (
        lambda it: it.update(autotp_unsupported_parameter_patterns={"x": "mine"}),
        "says that 'x' cannot be joined: 'mine'",
    ),
}
"""What AutoTP's info must not say: a change of it, words of the refusal."""
