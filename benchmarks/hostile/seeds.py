"""Small honest checkpoints of every source and of our own kinds: what hostile ones are made from.

Invariant: every one of them opens; a mutant that is refused was refused for what was changed.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.verify import verify


def dcp(folder: Path) -> None:
    """Torch DCP: two parameters, slots, settings, an object that is no plain data."""
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - slow to import

    state: dict[str, Any] = {"train.epoch": 3, "train.losses": [0.5, 0.25], "opaque": {1, 2}}
    for name in ("a.w", "b.w"):
        state[f"model.{name}"] = torch.arange(6.0).reshape(2, 3)
        state[f"optim.state.{name}.exp_avg"] = torch.ones(2, 3)
        state[f"optim.state.{name}.step"] = torch.tensor(3.0)
        state[f"optim.param_groups.{name}.lr"] = 0.1
        state[f"optim.param_groups.{name}.betas"] = (0.9, 0.999)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(state, checkpoint_id=folder, no_dist=True)


class fragment_address:
    """What DeepSpeed's param_slice_mappings hold."""

    def __init__(self, start: int, numel: int) -> None:
        """Elements of a flat buffer."""
        self.start, self.numel = start, numel


def zero1(folder: Path) -> None:
    """DeepSpeed ZeRO-1 over two ranks, with its `latest`."""
    tag = folder / "step7"
    tag.mkdir(parents=True)
    (folder / "latest").write_text("step7")
    shapes = {"a.w": torch.Size([2, 3]), "b.w": torch.Size([2])}
    model = {
        "module": {"a.w": torch.ones(2, 3), "b.w": torch.ones(2), "mean": torch.zeros(2)},
        "param_shapes": [shapes],
        "shared_params": {},
        "global_steps": 7,
        "global_samples": 56,
        "dp_world_size": 2,
        "lr_scheduler": {"last": 3, "rates": [0.1, 0.2]},
    }
    torch.save(model, tag / "mp_rank_00_model_states.pt")
    cuts = ({"a.w": (0, 4)}, {"a.w": (0, 2), "b.w": (2, 2)})
    for rank, cut in enumerate(cuts):
        torch.save(
            {"optimizer_state_dict": _partition(cut)},
            tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )


def _partition(cut: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    return {
        "zero_stage": 1,
        "partition_count": 2,
        "loss_scaler": None,
        "single_partition_of_fp32_groups": [torch.arange(4.0)],
        "param_slice_mappings": [{name: fragment_address(*at) for name, at in cut.items()}],
        "base_optimizer_state": {
            "state": {0: {"exp_avg": torch.ones(4), "step": 7}},
            "param_groups": [{"params": [0], "lr": 0.1, "betas": (0.9, 0.999)}],
        },
    }


def zero3(folder: Path) -> None:
    """DeepSpeed ZeRO-3 over two ranks: the tag's own folder."""
    folder.mkdir(parents=True)
    model = {
        "module": {"mean": torch.zeros(2)},
        "param_shapes": [{"w": torch.Size([3, 2])}],
        "frozen_param_shapes": {"f": torch.Size([3])},
        "shared_params": {"tied": "w"},
        "global_steps": 7,
    }
    for rank in range(2):
        parts = {"frozen_param_fragments": {"f": torch.arange(2.0)}}
        torch.save({**model, **parts}, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        held = {
            "zero_stage": 3,
            "partition_count": 2,
            "fp32_flat_groups": [torch.arange(3.0)],
            "optimizer_state_dict": {
                "state": {0: {"exp_avg": torch.ones(3), "step": torch.tensor(7.0)}},
                "param_groups": [{"params": [0], "lr": 0.1}],
            },
        }
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": held}, folder / name)


def physical(folder: Path) -> None:
    """Our own, with its data."""
    dcp(folder.with_name(f"{folder.name}.source"))
    write_physical(open_source(folder.with_name(f"{folder.name}.source")), folder)


def virtual(folder: Path) -> None:
    """Our own over another tool's files, hashed, with its record."""
    dcp(folder.with_name(f"{folder.name}.source"))
    write_virtual(open_source(folder.with_name(f"{folder.name}.source")), folder)
    verify(folder, jobs=1, record_digests=True)


SEEDS: Mapping[str, Callable[[Path], None]] = {
    each.__name__: each for each in (dcp, zero1, zero3, physical, virtual)
}
"""By name: what makes the checkpoint in a folder that is not there yet."""
