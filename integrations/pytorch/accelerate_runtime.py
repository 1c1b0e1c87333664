"""What Accelerate (1.15) gives to all that trains through it: states, strategies, ordered loaders.

Accelerate's own scripts and Hugging Face's Trainer are moved with these.

Invariant: the samples of an optimizer step are the same in every layout.
"""

import os
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout

try:
    from accelerate import DistributedType
    from accelerate.data_loader import DataLoaderShard, SeedableRandomSampler
    from accelerate.state import AcceleratorState, GradientState
except ImportError as error:
    raise ImportError(
        "wattmesh.integrations.pytorch.accelerate needs accelerate 1.15 in the training "
        f"environment ({error})."
    ) from error


@contextmanager
def begun_anew(layout: Layout) -> Iterator[None]:
    """Empty Accelerate's shared states, and tell the next Accelerator how to replicate.

    It is told as `accelerate launch` does, in the environment.
    """
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    if layout.dp_replicate == 1 or layout.dp_shard == 1:
        yield
        return
    told = {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(layout.dp_replicate),
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(layout.dp_shard),
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def check_layout(layout: Layout, what: str) -> None:
    """Refuse what a training through Accelerate is not moved to; `what`: names it in the sentence.

    Raises:
        InputInvalid: with the degree.
    """
    others = [name for name in ("pp", "cp", "tp", "ep") if getattr(layout, name) > 1]
    if others:
        raise InputInvalid(
            f"{what}: the layout {layout} has {others[0]} = {getattr(layout, others[0])}; it is "
            "moved over dp_replicate and dp_shard only."
        )
    if layout.micro_batch or layout.recompute:
        raise InputInvalid(
            f"{what}: micro_batch and recompute of a layout are not carried out; the script "
            "accumulates and checkpoints activations itself, the same in every layout."
        )


def refused_strategy(accelerator: Any, layout: Layout, on_cpu: str = "cpu=True") -> str:
    """Return in one sentence why an Accelerator cannot train a layout; "" when it can.

    `on_cpu`: what the script sets to train on the CPU.
    """
    kind = accelerator.distributed_type
    sharding = accelerator.is_fsdp2
    whole = {DistributedType.MEGATRON_LM: "Megatron-LM", DistributedType.XLA: "XLA"}
    found = {
        f"its Accelerator has {accelerator.num_processes} processes and the layout {layout} has "
        f"{layout.world_size} ranks (on the CPU it wants {on_cpu})": (
            accelerator.num_processes != layout.world_size
        ),
        "its DeepSpeed plugin is not moved; attach DeepSpeed's own engine": (
            kind == DistributedType.DEEPSPEED
        ),
        f"{whole.get(kind, kind)} is not moved, FSDP2 and DDP are": kind in whole,
        "FSDP1 is not moved; set fsdp_version=2": kind == DistributedType.FSDP and not sharding,
        "parameters that FSDP2 keeps on the CPU are not moved": (
            sharding and isinstance(accelerator.state.fsdp_plugin.cpu_offload, CPUOffloadPolicy)
        ),
        f"the layout {layout} shards, and the script's Accelerator has no FSDP2 plugin": (
            layout.dp_shard > 1 and not sharding
        ),
        f"the layout {layout} only replicates, which Accelerate does without its FSDP2 plugin": (
            layout.dp_replicate > 1 and layout.dp_shard == 1 and sharding
        ),
    }
    return next((words for words, holds in found.items() if holds), "")


def refused_loader(loader: Any, seedable: str) -> str:
    """Return in one sentence why a prepared loader cannot begin at a sample; "" when it can.

    `seedable`: what the script sets so that a shuffled order can be made again.
    """
    if not isinstance(loader, DataLoaderShard):
        return (
            f"its loader is a {type(loader).__name__}, which cannot begin at a sample; leave "
            "dispatch_batches and use_stateful_dataloader off"
        )
    if isinstance(loader.dataset, IterableDataset):
        return "its data set is read one after the other and cannot begin at a sample"
    sampler = sampler_of(loader)
    if isinstance(sampler, RandomSampler) and not isinstance(sampler, SeedableRandomSampler):
        return f"its data are shuffled in an order that cannot be made again; give {seedable}"
    return _refused_order(loader) or _refused_end(loader)


def _refused_order(loader: Any) -> str:
    """Refuse an order of the script's own that nobody can begin again at an epoch."""
    batches, sampler = batches_of(loader), sampler_of(loader)
    if type(batches) is not BatchSampler:
        return (
            f"its {type(batches).__name__} makes batches of its own, which could not be made again;"
            " give the DataLoader a batch_size, and a sampler if need be"
        )
    if type(sampler) is not SequentialSampler and not hasattr(sampler, "set_epoch"):
        return (
            f"its data are ordered by a {type(sampler).__name__}, whose order could not be made "
            "again; let the loader shuffle, or give the sampler a set_epoch(epoch) that its order "
            "follows from alone"
        )
    return ""


def _refused_end(loader: Any) -> str:
    sampler, batch = sampler_of(loader), loader.total_batch_size
    if (
        isinstance(sampler, Sized)
        and len(sampler) % batch
        and not getattr(loader.batch_sampler, "drop_last", False)
    ):
        return (
            f"its {len(sampler)} samples fill no whole batches of {batch}, and Accelerate would "
            "fill up the last one on several ranks and not on one; give the DataLoader "
            "drop_last=True"
        )
    return ""


def inner(model: Any) -> nn.Module:
    """Return the model under DDP, or the model: its parameters have their own names there."""
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    found: nn.Module = model.module if wrapped else model
    return found


def batches_of(loader: Any) -> Any:
    """Return what makes the batches of all ranks together, beneath Accelerate's own."""
    found = loader.batch_sampler
    while hasattr(found, "batch_sampler"):
        found = found.batch_sampler
    return found


def sampler_of(loader: Any) -> Any:
    """Return the sampler that orders the data set."""
    return getattr(batches_of(loader), "sampler", None)


def set_epoch(loader: Any, epoch: int) -> None:
    """Have the next pass through a loader be that of an epoch, in its order."""
    loader.iteration = epoch
    sampler = sampler_of(loader)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


class SameData:
    """Which data a run reads, in which order: equal in all its layouts and launches."""

    def __init__(self, loader: Any) -> None:
        """Know the data of a prepared loader."""
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        """Say which data these are."""
        seed = getattr(sampler_of(self._loader), "initial_seed", -1)
        return {
            "samples": len(self._loader.dataset),
            "batch": self._loader.total_batch_size,
            "seed": int(seed),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Compare with what the run has read so far.

        Raises:
            InputInvalid: it is another data set, batch or order.
        """
        mine = self.state_dict()
        for what, before in state_dict.items():
            if mine[what] != before:
                raise InputInvalid(
                    f"the run's data had {what} = {before}, now it is {mine[what]}; it goes on "
                    "with the same samples in the same order, or as another run."
                )


def first_samples(loader: Any, count: int = 2) -> Any:
    """Collate the first samples of a loader's data set, the same on every rank."""
    data, collate = loader.dataset, loader.collate_fn or torch.utils.data.default_collate
    return collate([data[min(at, len(data) - 1)] for at in range(count)])
