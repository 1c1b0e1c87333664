"""Two ranks that fetched different expert costs; run by each, which writes what it then uses."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from wattmesh.integrations.pytorch.experts.costs import costs_of, same_on_all_ranks
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Ranks

HOLDERS = ("GPU-a", "GPU-b")


def answer(version: int) -> dict[str, Any]:
    """What a daemon would say."""
    scores = {"GPU-a": -1.0, "GPU-b": 1.0 if version == 3 else 0.5}
    return {"run": "r", "version": version, "strength": 0.2, "age_s": 0.0, "scores": scores}


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
    group.end()
    return 0
