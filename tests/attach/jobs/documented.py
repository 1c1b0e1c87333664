"""The smaller python blocks of docs/attach.md as jobs, with the parts of its whole script."""

import os
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch.distributed import checkpoint as dcp

from tests.docs.blocks import block, filled
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all

PAGE = "docs/attach.md"
SHORT = "Attach a training job"


def parts() -> dict[str, Any]:
    """What the whole script defines, and does not begin to train with."""
    script = block(PAGE, "A whole script")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script.partition("\nsession = ")[0], PAGE, "exec"), names)
    return names


def short() -> int:
    """The page's first block, with `build`, `probe` and `train_step` of the whole script."""
    names = parts()
    train = names["train_step"]

    def train_step(state: State) -> SimpleNamespace:
        loss, _ = train(state)
        names["session"].finish()
        print("trained", names["session"].position.step, loss)
        return SimpleNamespace(tokens=512, samples=8, loss=loss)

    names |= {"train_step": train_step, "default": names["wattmesh"].Layout(dp_shard=2)}
    filled(block(PAGE, SHORT), names, **{"/shared/llama-8b": os.environ["REAL"]})
    print("ended", names["session"].outcome)
    return 0


def own_save_and_tracker() -> int:
    """The checkpointer's block, and the tracker's as its loop."""
    names = parts()
    build, train, real = names["build"], names["train_step"], os.environ["REAL"]

    def build_with_group(layout: Layout, ranks: Ranks) -> State:
        state: State = build(layout, ranks)
        state.parts.saving = dist.new_group(backend="gloo")
        return state

    def train_step(state: State) -> float:
        loss, _ = train(state)
        names["session"].finish()
        return float(loss)

    def tracker(*, id: str, resume: str) -> SimpleNamespace:
        assert resume == "allow"
        return SimpleNamespace(log=lambda values, step: print("tracked", id, step, values["again"]))

    names |= {
        "dcp": dcp,
        "folder": f"{real}-mine",
        "everything": lambda state: dict(name_all(state).tensors),
        "train_step": train_step,
        "tracker": tracker,
        "tokens": 512,
        "samples": 8,
        "given": {
            "name": "mine",
            "build": build_with_group,
            "probe": names["probe"],
            "layout": names["wattmesh"].Layout(dp_shard=2),
            "checkpoint_dir": real,
            "boundary_every": 4,
        },
    }
    filled(block(PAGE, "Your own checkpointer"), names)
    loop = block(PAGE, "An experiment tracker").splitlines()
    filled("\n    ".join(["while not session.done:", *loop]), names)
    print("ended", names["session"].outcome)
    return 0
