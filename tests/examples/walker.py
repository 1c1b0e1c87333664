"""Walks one gloo job through several layouts and writes what each trained: run by `walk`.

Every rank of the largest layout is one process; a layout that needs fewer ranks leaves the others
waiting. `shift` is a sabotage: that rank trains on other samples than it should. So is a layout
with `!` and a harm of the benchmark's job types behind it, which is done before its first step.
"""

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from benchmarks.equivalence.job_type_controls import JOB_TYPE_HARM
from examples.pretrain.config import preset
from examples.pretrain.options import parse_layout
from examples.pretrain.train import build_state, probe, train_step
from tests.hook.harness import Zygote
from wattmesh.integrations.pytorch.gradients import shard_of
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.state import State

_ASKED = "WALK"
_RESULT = "trained.json"
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Trained:
    """What one layout did: loss and gradient norm per step, probe before and after."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    probes: tuple[float, float]
    held: tuple[int, int, int]
    """Bytes of parameters, optimizer slots and averages, on the rank that holds most."""


def walk(
    zygote: Zygote,
    folder: Path,
    layouts: Sequence[str],
    *,
    dtype: str,
    steps: int,
    model: str = "tiny",
    shift: int = -1,
) -> dict[str, Trained]:
    """Train `steps` steps from the seed in every layout, and give what each did."""
    folder.mkdir(exist_ok=True)
    ranks = max(_split(each)[0].world_size for each in layouts)
    asked = {
        "folder": str(folder),
        "layouts": list(layouts),
        "dtype": dtype,
        "steps": steps,
        "model": model,
        "shift": shift,
    }
    environment = {_ASKED: json.dumps(asked)}
    zygote.load("tests.examples.walker")
    number = zygote.start(ranks, environment, folder, "tests.examples.walker:main")
    status = zygote.wait(number, PATIENCE_S)
    assert status == 0, "\n".join(each.read_text() for each in folder.glob("rank-*.log"))
    found: dict[str, Any] = json.loads((folder / _RESULT).read_text())
    return {
        layout: Trained(**{name: tuple(values) for name, values in each.items()})
        for layout, each in found.items()
    }


def _split(text: str) -> tuple[Layout, str]:
    """Read a layout, and what harm is done in it; "" for none."""
    layout, _, harm = text.partition("!")
    return parse_layout(layout), harm


def _train(asked: dict[str, Any], rank: int, text: str) -> dict[str, Any]:
    """Train in one layout over the default process group."""
    layout, harm = _split(text)
    state = build_state(preset(asked["model"], dtype=asked["dtype"]), layout)
    if rank == asked["shift"]:
        share = state.parts.share
        state.parts.share = replace(share, offset=share.offset + 1)
    if harm:
        JOB_TYPE_HARM[harm](state, rank)
    losses, norms, first = [], [], probe(state)
    # A checkpoint may follow a probe at once: nothing may be left gathered.
    assert layout.world_size == 1 or all(isinstance(p, DTensor) for p in state.parameters())
    for _ in range(asked["steps"]):
        metrics = train_step(state)
        losses.append(metrics.loss)
        norms.append(metrics.gradient_norm)
        at = state.position
        state.position = replace(at, step=at.step + 1, samples=at.samples + metrics.samples)
    probes = [first, probe(state)]
    return {"losses": losses, "norms": norms, "probes": probes, "held": _most_held(state)}


def _most_held(state: State) -> list[int]:
    """Bytes of parameters, slots and averages on the rank that holds most."""
    slots = [
        slot
        for optimizer in state.optimizers
        for slots in optimizer.state.values()
        for slot in slots.values()
        if slot.dim()  # the step counters are scalars
    ]
    found = [
        sum(shard_of(each).nbytes for each in tensors)
        for tensors in (state.parameters(), slots, state.averages["ema"].values())
    ]
    most = torch.tensor(found)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return [int(each) for each in most]


def main() -> int:
    """Take part in every layout that has a place for this rank."""
    warnings.simplefilter("error")
    # Torch warns from the inside about its own parts; warnings of ours stay errors.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(1)
    asked, rank = json.loads(os.environ[_ASKED]), int(os.environ["RANK"])
    folder = Path(asked["folder"])
    found = {}
    for number, text in enumerate(asked["layouts"]):
        world_size = _split(text)[0].world_size
        if rank < world_size:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/meet-{number}",
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=60),
            )
            found[text] = _train(asked, rank, text)
            group.end()
    if rank == 0:
        (folder / _RESULT).write_text(json.dumps(found))
    return 0
