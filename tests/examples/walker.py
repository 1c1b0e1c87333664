"""Walks one gloo job through several layouts and writes what each trained: run by `walk`.

Every rank of the largest layout is one process of this script; a layout that needs fewer ranks
leaves the others waiting. `--shift RANK` is the sabotage: that rank trains on other samples than
it should.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from examples.pretrain.config import preset
from examples.pretrain.options import parse_layout
from examples.pretrain.train import build_state, probe, train_step

_PATIENCE_S = 120
_RESULT = "trained.json"


@dataclass(frozen=True, slots=True)
class Trained:
    """What one layout did: loss and gradient norm per step, probe before and after."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    probes: tuple[float, float]


def walk(
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
    ranks = max(parse_layout(each).world_size for each in layouts)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(folder), "--rank", str(rank)]
            + ["--model", model, "--dtype", dtype, "--steps", str(steps), "--shift", str(shift)]
            + [part for layout in layouts for part in ("--layout", layout)],
            env=environment,
        )
        for rank in range(ranks)
    ]
    try:
        _wait_for_all(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found: dict[str, Any] = json.loads((folder / _RESULT).read_text())
    return {
        layout: Trained(tuple(each["losses"]), tuple(each["norms"]), tuple(each["probes"]))
        for layout, each in found.items()
    }


def _wait_for_all(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait until every rank ended well; one that fails ends the wait for all."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while (codes := [process.poll() for process in processes]) != [0] * len(processes):
        assert not any(codes), f"exit codes {codes}"
        assert time.monotonic() < deadline_s, f"not done after {_PATIENCE_S} s: {codes}"
        time.sleep(0.02)


def _train(arguments: argparse.Namespace, text: str) -> dict[str, Any]:
    """Train in one layout over the default process group."""
    layout = parse_layout(text)
    state = build_state(preset(arguments.model, dtype=arguments.dtype), layout)
    if arguments.rank == arguments.shift:
        share = state.parts.share
        state.parts.share = replace(share, offset=share.offset + 1)
    losses, norms, first = [], [], probe(state)
    # A checkpoint may follow a probe at once: nothing may be left gathered.
    assert layout.world_size == 1 or all(isinstance(p, DTensor) for p in state.parameters())
    for _ in range(arguments.steps):
        metrics = train_step(state)
        losses.append(metrics.loss)
        norms.append(metrics.gradient_norm)
        at = state.position
        state.position = replace(at, step=at.step + 1, samples=at.samples + metrics.samples)
    return {"losses": losses, "norms": norms, "probes": [first, probe(state)]}


def main() -> None:
    """Take part in every layout that has a place for this rank."""
    # Torch warns from the inside about its own parts; warnings of ours stay errors.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--model")
    parser.add_argument("--dtype")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--shift", type=int)
    parser.add_argument("--layout", action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for number, text in enumerate(arguments.layout):
        world_size = parse_layout(text).world_size
        if arguments.rank < world_size:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{arguments.folder}/meet-{number}",
                rank=arguments.rank,
                world_size=world_size,
                timeout=timedelta(seconds=60),
            )
            found[text] = _train(arguments, text)
            dist.destroy_process_group()
    if arguments.rank == 0:
        (arguments.folder / _RESULT).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
