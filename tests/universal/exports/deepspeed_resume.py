"""A real DeepSpeed job of two ranks: trains, saves, converts, and loads what we exported.

    python -m tests.universal.exports.deepspeed_resume FOLDER PORT

Writes FOLDER/losses-RANK.json: stage -> what was loaded -> losses of the steps that follow; and
FOLDER/slices.json: what DeepSpeed gives each tensor parallel rank of a fused tensor.
"""

import gc
import json
import os
import shutil
import sys
import traceback
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from deepspeed.checkpoint import ds_to_universal
from deepspeed.checkpoint.universal_checkpoint import load_hp_checkpoint_state
from torch import nn

import tests.deepspeed_once  # noqa: F401 - what ranks would import for themselves
from tests.universal.exports.scattered import scatter
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.exports import deepspeed as ours
from wattmesh.reconfig.universal.exports.values import from_trainer
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.folder import open_checkpoint
from wattmesh.reconfig.universal.index.rules import SubBlocks
from wattmesh.reconfig.universal.sources.detect import open_source

RANKS = 2
STAGES = (1, 2, 3)
SAVED_AFTER = 3


class Net(nn.Module):
    """Weights, a bias, and a buffer."""

    def __init__(self) -> None:
        """Of a few hundred elements, in odd numbers so that ranks get uneven parts."""
        super().__init__()
        self.embed = nn.Embedding(17, 7)
        self.inner = nn.Linear(7, 9)
        self.head = nn.Linear(9, 17, bias=False)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        logits: torch.Tensor = self.head(torch.tanh(self.inner(self.embed(tokens))))
        return logits


def engine_of(stage: int, seed: int, *, universal: bool) -> Any:
    """A DeepSpeed engine; ZeRO-1 and 2 with two parameter groups (ZeRO-3 reloads only one)."""
    torch.manual_seed(seed)
    net = Net()
    groups: Any = list(net.parameters())
    if stage < 3:
        flat = [each for each in groups if each.ndim == 1]
        wide = [each for each in groups if each.ndim > 1]
        groups = [{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01 / seed, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 5}},
        "zero_optimization": {"stage": stage},
        "checkpoint": {"load_universal": universal},
    }
    engine, *_ = deepspeed.initialize(model=net, config=config, model_parameters=groups)
    return engine


def losses_of(engine: Any, steps: range) -> list[float]:
    """Train some steps, this rank on its own tokens."""
    losses = []
    for step in steps:
        chance = torch.Generator().manual_seed(10 * step + torch.distributed.get_rank())
        tokens = torch.randint(0, 17, (2, 6), generator=chance)
        logits = engine(tokens[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def export_all(folder: Path) -> None:
    """Convert with DeepSpeed; convert and export with ours; and spoil a copy of that."""
    options = Namespace(
        input_folder=str(folder / "saved"), output_folder=str(folder / "theirs"), strict=True,
        num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False,
        inject_missing_state=True,
    )  # fmt: skip
    ds_to_universal.main(options)
    write_virtual(open_source(folder / "saved"), folder / "virtual")
    checkpoint = open_checkpoint(folder / "virtual")
    engine, numbers = ours.engine_of(checkpoint), from_trainer(checkpoint.trainer).numbers
    with Files(checkpoint.folder) as files:
        ours.export(checkpoint.index, files, folder / "ours", engine=engine, numbers=numbers)
    shutil.copytree(folder / "ours", folder / "spoilt")
    inner = folder / "spoilt" / "zero" / "inner.weight"
    shutil.copy(inner / "exp_avg_sq.pt", inner / "exp_avg.pt")


def run(folder: Path, stage: int) -> dict[str, Any]:
    """Losses after going on, and after loading each of the folders into another seed's model."""
    engine = engine_of(stage, 1, universal=False)
    losses_of(engine, range(SAVED_AFTER))
    info = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.4}}
    engine.save_checkpoint(folder, tag="saved", client_state={**info, "note": ["hello"]})
    later = range(SAVED_AFTER, SAVED_AFTER + 3)
    losses: dict[str, Any] = {"went on": losses_of(engine, later)}
    if torch.distributed.get_rank() == 0:
        export_all(folder)
    torch.distributed.barrier()
    for tag in ("theirs", None, "spoilt"):
        engine = engine_of(stage, 2, universal=True)
        _, client = engine.load_checkpoint(folder, tag=tag)
        counters = [engine.global_steps, engine.global_samples]
        facts = [client["note"], engine.lr_scheduler.state_dict(), *counters]
        name = tag or "latest_universal"
        losses[f"facts of {name}"] = facts
        losses[name] = losses_of(engine, later)
    return losses


def slices_of(folder: Path) -> list[list[float]]:
    """First column of a fused tensor as DeepSpeed cuts it for two tensor parallel ranks."""
    fused = torch.arange(8.0)[:, None].repeat(1, 2)
    tensors = {("qkv", "param"): fused, ("qkv", "exp_avg"): fused}
    index = scatter(folder / "source", tensors)
    rule = SubBlocks(0, ((2, 1, 1), (2, 1, 1)))
    entries = tuple(replace(entry, rule=rule) for entry in index.entries)
    with Files(folder / "source") as files:
        engine = ours.EngineState(global_steps=1)
        ours.export(replace(index, entries=entries), files, folder / "out", engine=engine)
    found = []
    for rank in range(2):
        part = torch.zeros(8)
        mapping = SimpleNamespace(
            lp_fragment_address=SimpleNamespace(start=0, numel=8),
            get_hp_fragment=lambda part=part: part,
        )
        parameter = nn.Parameter(torch.zeros(4, 2))
        vars(parameter)["_hp_mapping"] = mapping
        load_hp_checkpoint_state(parameter, str(folder / "out" / "zero" / "qkv"), rank, 2)
        found.append(part.view(4, 2)[:, 0].tolist())
    return found


def rank_of(rank: int, folder: Path, port: str) -> None:
    """All stages, one after the other, as one rank."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in place.items()}, MASTER_ADDR="127.0.0.1")
    deepspeed.init_distributed("gloo", verbose=False)
    results = {stage: run(folder / str(stage), stage) for stage in STAGES}
    if rank == 0:
        (folder / "slices.json").write_text(json.dumps(slices_of(folder / "fused")))
    (folder / f"losses-{rank}.json").write_text(json.dumps(results))


def start(rank: int, folder: Path, port: str) -> int:
    """Fork a rank; its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            rank_of(rank, folder, port)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def main() -> int:
    """Both ranks, which share one import of DeepSpeed; how many of them failed."""
    torch.set_num_threads(1)
    # It would be compiled on first use; gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed collects garbage again and again: what was imported is set aside for all ranks.
    gc.collect()
    gc.freeze()
    pids = [start(rank, Path(sys.argv[1]), sys.argv[2]) for rank in range(RANKS)]
    return sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)


if __name__ == "__main__":
    sys.exit(main())
