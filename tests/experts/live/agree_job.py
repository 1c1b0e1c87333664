"""Two ranks that fetched different expert costs; run by each, which writes what it then uses."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from wattmesh.integrations.pytorch.experts.costs import costs_of, same_on_all_ranks
from wattmesh.integrations.pytorch.experts.paired_probe import paired_probe
from wattmesh.integrations.pytorch.experts.router import EnergyRouter
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Ranks
from wattmesh.reconfig.state.state import State

HOLDERS = ("GPU-a", "GPU-b")


def answer(version: int) -> dict[str, Any]:
    """What a daemon would say."""
    scores = {"GPU-a": -1.0, "GPU-b": 1.0 if version == 3 else 0.5}
    return {"run": "r", "version": version, "strength": 0.2, "age_s": 0.0, "scores": scores}


def _paired(rank: int) -> tuple[float, float] | None:
    """Measure a pair where the second rank, a stage of dense layers, has no mixture."""
    groups = [dist.new_group([each]) for each in range(2)]
    torch.manual_seed(0)
    routers = [EnergyRouter(8, 4, 2, mode="tilt")] if rank == 0 else []
    for each in routers:
        each.set_costs((1.0, -1.0, 1.0, -1.0), 0.5)
        each.bias_X.copy_(torch.tensor([-0.1, 0.1, -0.1, 0.1]))

    def probe(_: State) -> float:
        loss = torch.zeros(())
        for each in routers:
            loss += each(torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))[1].sum()
        dist.all_reduce(loss)
        return float(loss)

    return paired_probe(probe, lambda _: routers, groups[rank])(cast(State, None))


def main() -> int:
    """Agree in three cases."""
    torch.set_num_threads(1)
    launch_store = LaunchStore.connect(30.0)
    ranks = Ranks(participants=tuple(range(launch_store.launched)), global_rank=launch_store.rank)
    group.begin(launch_store, 1, ranks, device="cpu", timeout_s=60.0)
    cases: dict[str, tuple[object, object]] = {
        "newer on the second": (answer(3), answer(4)),
        "none on the second": (answer(3), None),
        "none on the first": (None, answer(4)),
    }
    said = {
        name: asdict(same_on_all_ranks(costs_of(each[launch_store.rank], run="r", holders=HOLDERS)))
        for name, each in cases.items()
    }
    for each in said.values():
        each.pop("neutral_because")
    Path(os.environ["OUT"], f"said-{launch_store.rank}.json").write_text(json.dumps(said))
    paired = _paired(launch_store.rank)
    Path(os.environ["OUT"], f"paired-{launch_store.rank}.json").write_text(json.dumps(paired))
    group.end()
    return 0
