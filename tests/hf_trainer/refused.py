"""Makes trainers that are not moved, each by one change, and writes what is said of each."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType
from torch.utils.data import IterableDataset, WeightedRandomSampler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.accelerate_runtime import begun_anew
from wattmesh.integrations.pytorch.huggingface import trainer as adapter
from wattmesh.reconfig.layout import Layout

ROWS = [{"input_ids": each, "labels": each} for each in torch.zeros(16, 4, dtype=torch.long)]
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "eval_strategy": "epoch"}


class Stream(IterableDataset[Any]):
    """Data that come one after the other."""

    def __iter__(self) -> Iterator[Any]:
        """Give some."""
        yield from ROWS


class OwnLoop(Trainer):
    """A class whose `train` does something else."""

    def train(self, *args: Any, **named: Any) -> Any:
        """Train, and more."""
        return super().train(*args, **named)


class OwnLoader(Trainer):
    """A class whose loader has a batch size of its own."""

    def get_train_dataloader(self) -> Any:
        """Give one sample at a time."""
        data: Any = self.train_dataset
        order: Any = self._get_train_sampler
        return self._get_dataloader(data, "train", 1, order)


class OwnOrder(Trainer):
    """A class that draws its samples by weight."""

    def _get_train_sampler(self, *args: Any, **named: Any) -> Any:
        return WeightedRandomSampler([1.0] * len(ROWS), len(ROWS))


def _made(kind: Any = Trainer, data: Any = ROWS, mark: Any = None, **given: Any) -> Any:
    chosen = {"max_steps": 2, "gradient_accumulation_steps": 2, "use_cpu": True, **given}
    arguments = TrainingArguments(os.environ["OUT"], report_to="none", **chosen)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    model = LlamaForCausalLM(config)
    trainer = kind(model=model, args=arguments, train_dataset=data, eval_dataset=ROWS)
    if mark is not None:
        mark(trainer)
    return trainer


def _of_kind(kind: DistributedType, fsdp_version: int = 1) -> Any:
    def mark(trainer: Any) -> None:
        state = trainer.accelerator.state
        plugin = {"fsdp_version": fsdp_version, "cpu_offload": None}
        state.fsdp_plugin = type("Plugin", (), plugin)()
        state.distributed_type = kind

    return mark


FSDP2 = _of_kind(DistributedType.FSDP, 2)


def _adapted(trainer: Any) -> None:
    trainer.model.peft_config = {}


def _loaded_sharded(trainer: Any) -> None:
    trainer.is_distributed_loading_by_transformers = True


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two ranks": {"layout": Layout(dp_shard=2)},
    "batch": {"global_batch_size": 5},
    "auto_find_batch_size": {"auto_find_batch_size": True},
    "group_by_length": {"train_sampling_strategy": "group_by_length"},
    "average_tokens": {"average_tokens_across_devices": False},
    "ignore_data_skip": {"ignore_data_skip": True},
    "resume": {"resume_from_checkpoint": "somewhere"},
    "best": {**BEST, "save_strategy": "epoch"},
    "jit": {"enable_jit_checkpoint": True},
    "split_batches": {"accelerator_config": {"split_batches": True}},
    "seedable": {"accelerator_config": {"use_seedable_sampler": False}},
    "stream": {"data": Stream()},
    "short": {"data": ROWS[:15]},
    "own loop": {"kind": OwnLoop},
    "own loader": {"kind": OwnLoader},
    "own order": {"kind": OwnOrder},
    "peft": {"mark": _adapted},
    "loaded sharded": {"mark": _loaded_sharded},
    "adafactor": {"optim": "adafactor", "mark": FSDP2},
    "adafactor alone": {"optim": "adafactor"},
    "smoothed alone": {"label_smoothing_factor": 0.1},
    "smoothed": {"label_smoothing_factor": 0.1, "mark": FSDP2},
    "deepspeed": {"mark": _of_kind(DistributedType.DEEPSPEED)},
    "fsdp1": {"mark": _of_kind(DistributedType.FSDP)},
}


def main() -> int:
    """Write by case what is said; "" of one that is taken."""
    said = {}
    for case, given in CASES.items():
        chosen = dict(given)
        layout = chosen.pop("layout", Layout())
        batch = chosen.pop("global_batch_size", 4)
        with begun_anew(layout):
            try:
                adapter.prepared(partial(_made, **chosen), layout, batch, 1, 1)
                said[case] = ""
            except InputInvalid as error:
                said[case] = str(error)
    Path(os.environ["OUT"], "said.json").write_text(json.dumps(said))
    return 0
