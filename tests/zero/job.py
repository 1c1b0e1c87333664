"""Launches of a real DeepSpeed job, one after the other, each on other ranks or another stage.

    python -m tests.zero.job FOLDER

DeepSpeed is imported once; ranks are forked from there. Writes FOLDER/said.json: launch -> what
its ranks told: losses by step, what `resume` gave, the outcome, or the error.
"""

import gc
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import tests.deepspeed_once  # noqa: F401 - what ranks would import for themselves
from tests.docs.blocks import block, filled
from wattmesh.errors import WattmeshError
from wattmesh.integrations.deepspeed import DeepSpeedRun, refusal
from wattmesh.reconfig.launch.folder import OUTCOME_VARIABLE

GLOBAL_BATCH = 4
WORDS = 17


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: ranks and stage, the steps it trains to, and why it leaves there.

    Attributes:
        run: name of the run's folder; "" for a run beside wattmesh.
        spoil: what is done to the state behind its back once it was resumed.
    """

    name: str
    ranks: int
    stage: int
    until: int
    run: str = "moved"
    leave: str = "restart"
    spoil: str = ""


LAUNCHES = (
    Launch("alone", 1, 1, 9, run=""),
    Launch("first", 2, 2, 3),
    Launch("second", 1, 3, 6),
    Launch("third", 2, 1, 9, leave="finish"),
    Launch("moment dropped", 1, 2, 9, leave="finish", spoil="moment", run="copied"),
    Launch("damaged newest", 1, 2, 6, leave="stop", run="damaged"),
    Launch("all damaged", 2, 2, 6, run="lost"),
)


class Net(nn.Module):
    """Odd sizes, so that ranks get uneven parts."""

    def __init__(self) -> None:
        """Draw it."""
        super().__init__()
        self.embed = nn.Embedding(WORDS, 7)
        self.inner = nn.Linear(7, 9)
        self.head = nn.Linear(9, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        logits: torch.Tensor = self.head(torch.tanh(self.inner(self.embed(tokens))))
        return logits


def engine_of(stage: int, *, groups: int = 1, **settings: Any) -> Any:
    """A DeepSpeed engine whose global batch does not depend on its ranks."""
    torch.manual_seed(3)
    net = Net()
    each = list(net.parameters())
    made = [{"params": each[n::groups]} for n in range(groups)]
    config = {
        "train_batch_size": GLOBAL_BATCH,
        "train_micro_batch_size_per_gpu": GLOBAL_BATCH // dist.get_world_size(),
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 5}},
        "zero_optimization": {"stage": stage},
        "checkpoint": {"load_universal": True},
        **settings,
    }
    engine, *_ = deepspeed.initialize(model=net, config=config, model_parameters=made)
    return engine


def train_one(engine: Any, sample: int) -> float:
    """Train the global batch that begins at `sample`; the loss over all of it."""
    mine = GLOBAL_BATCH // dist.get_world_size()
    first = sample + mine * dist.get_rank()
    rows = []
    for number in range(first, first + mine):
        chance = torch.Generator().manual_seed(number)
        rows.append(torch.randint(0, WORDS, (6,), generator=chance))
    tokens = torch.stack(rows)
    logits = engine(tokens[:, :-1]).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
    engine.backward(loss)
    engine.step()
    whole = loss.detach().clone()
    dist.all_reduce(whole)
    return whole.item() / dist.get_world_size()


def spoil(engine: Any) -> None:
    """Drop the first moment, as a careless reshard would."""
    for state in engine.optimizer.optimizer.state.values():
        state["exp_avg"].zero_()


def train(launch: Launch, folder: Path) -> dict[str, Any]:
    """One rank of one launch."""
    engine = engine_of(launch.stage)
    if not launch.run:
        steps = range(launch.until)
        return {"losses": {step + 1: train_one(engine, step * GLOBAL_BATCH) for step in steps}}
    run = DeepSpeedRun(engine, "zero", folder / launch.run, keep=2)
    client = run.resume()
    if launch.spoil:
        spoil(engine)
    losses, sample, left = {}, client["samples"] if client else 0, False
    while run.step < launch.until:
        loss = train_one(engine, sample)
        losses[run.step] = loss
        sample += GLOBAL_BATCH
        last = run.step == launch.until
        if last and launch.leave == "stop" and dist.get_rank() == 0:
            (folder / launch.run / "stop").touch()
        # One rank's wish is enough, and it need not be the first's.
        asks = last and launch.leave == "restart" and dist.get_rank() == dist.get_world_size() - 1
        if run.step >= launch.until - 1:
            left = run.boundary({"samples": sample}, restart="another shape" if asks else "")
    if launch.leave == "finish":
        run.finish("all trained")
    return {"losses": losses, "client": client, "left": left}


def refusals() -> dict[str, str]:
    """What real engines are told; then one whose facts say what only a GPU or more ranks allow."""
    engine = engine_of(2)
    said = {"good": refusal(engine)}
    said["stage 0"] = refusal(engine_of(0))
    said["groups"] = refusal(engine_of(3, groups=2))
    said["not universal"] = refusal(engine_of(1, checkpoint={"load_universal": False}))
    narrow: dict[str, Any] = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    said["separate bf16"] = refusal(engine_of(1, **narrow))
    for name, value in {
        "zero_offload_optimizer": lambda: SimpleNamespace(device="cpu"),
        "pipeline_parallelism": True,
        "has_moe_layers": True,
        "mp_world_size": 2,
    }.items():
        before = getattr(engine, name)
        setattr(engine, name, value)
        said[name] = refusal(engine)
        setattr(engine, name, before)
    return said


def documented(folder: Path) -> dict[str, Any]:
    """One rank that runs the block of docs/attach.md, which leaves in band, and is launched again.

    A page's engine is made anew: what the second one trains from is the first one's checkpoint.
    """
    config = {
        "train_batch_size": GLOBAL_BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "checkpoint": {"load_universal": True},
    }
    real = {"/shared/llama-8b": str(folder / "documented")}
    said: dict[str, Any] = {"kept": []}
    for why in ("another shape", ""):
        names: dict[str, Any] = {
            "deepspeed": deepspeed, "sys": sys, "model": Net(), "config": config,
            "steps": 6, "every": 2, "why": why, "samples": 0,
        }  # fmt: skip

        def go_on(names: dict[str, Any] = names) -> None:
            names["samples"] += GLOBAL_BATCH
            train_one(names["engine"], 0)

        names["go_on"] = go_on
        try:
            filled(block("docs/attach.md", "DeepSpeed"), names, **real)
            said["left"] = "finished"
        except SystemExit:
            said["left early at"] = names["run"].step
        said["kept"].append(names["kept"])
        said["reached"] = names["run"].step
        # Its claim on the run's folder ends with the launch.
        del names
        gc.collect()
    return said


def as_rank(rank: int, ranks: int, store: Path, told: Path, act: Callable[[], Any]) -> int:
    """Fork a rank that acts and tells; its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ[OUTCOME_VARIABLE] = f"{told}.outcome"
    try:
        deepspeed.init_distributed(
            "gloo",
            verbose=False,
            auto_mpi_discovery=False,
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
        )
        try:
            said = act()
        except WattmeshError as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        told.with_name(f"{told.name}-{rank}").write_text(json.dumps(said))
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def launched(launch: Launch, folder: Path) -> dict[str, Any]:
    """One launch to its end; what its ranks told, and its outcome."""
    told = folder / f"told-{launch.name}"
    store = folder / f"store-{launch.name}"
    pids = [
        as_rank(rank, launch.ranks, store, told, lambda: train(launch, folder))
        for rank in range(launch.ranks)
    ]
    if any([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]):
        raise RuntimeError(f"the launch {launch.name} failed")
    ranks = [json.loads((folder / f"{told.name}-{rank}").read_text()) for rank in range(len(pids))]
    outcome = Path(f"{told}.outcome")
    return {"ranks": ranks, "outcome": json.loads(outcome.read_text()) if outcome.exists() else {}}


def prepare(launch: Launch, folder: Path) -> None:
    """Copy the run as it was after the second launch, and damage what the launch shall meet."""
    if launch.run in ("", "moved"):
        return
    link_tree(folder / "kept", folder / launch.run)
    checkpoints = sorted((folder / launch.run).glob("step-*"))
    # The newest of "lost" is the one that was damaged through "damaged".
    for each in {"damaged": checkpoints[-1:], "lost": checkpoints[:-1]}.get(launch.run, []):
        path = max((each / "files").rglob("*optim_states.pt"), key=lambda path: path.stat().st_size)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        at = path.stat()
        path.write_bytes(data)
        os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))


def link_tree(source: Path, target: Path) -> None:
    """A copy of a run's folder whose checkpoints hold the same files: a copied one is no longer it.

    What is damaged through one is damaged in both, so the most damaged comes last.
    """
    shutil.copytree(source, target, copy_function=os.link)


def main() -> int:
    """All launches, one after the other."""
    torch.set_num_threads(1)
    # It would be compiled on first use; gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed collects garbage again and again: what was imported is set aside for all ranks.
    gc.collect()
    gc.freeze()
    folder = Path(sys.argv[1])
    said: dict[str, Any] = {}
    for launch in LAUNCHES:
        prepare(launch, folder)
        said[launch.name] = launched(launch, folder)
        said[launch.name]["kept"] = sorted(
            each.name for each in (folder / launch.run).glob("*step-*") if launch.run
        )
        if launch.name == "second":
            link_tree(folder / "moved", folder / "kept")
    for name, act in {"refusals": refusals, "documented": lambda: documented(folder)}.items():
        pid = as_rank(0, 1, folder / f"store-{name}", folder / f"told-{name}", act)
        os.waitpid(pid, 0)
        said[name] = json.loads((folder / f"told-{name}-0").read_text())
    (folder / "said.json").write_text(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
