"""A job that writes which experts the example sends every token of a batch to, by layout."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from examples.pretrain.config import preset
from examples.pretrain.experts import MixtureOfExperts
from examples.pretrain.model import LanguageModel
from examples.pretrain.options import parse_layout
from examples.pretrain.train import build_state, local_batch, train_step
from wattmesh.reconfig.state.state import State

STEPS = 3


def record(state: State, into: dict[str, list[list[int]]]) -> None:
    """Write down the choice of every token of one forward: [token, expert, expert] by layer."""
    handles = []
    share, where = state.parts.share, _model(state).where
    samples = torch.arange(share.offset, share.offset + share.count)
    tokens_BS = samples[:, None] * state.parts.config.model.seq_len + where.stream_S
    for name, module in state.modules[0].named_modules():
        if isinstance(module, MixtureOfExperts):

            def note(
                router: Any, inputs: Any, logits: Any, name: str = name, layer: Any = module
            ) -> None:
                local = logits.to_local() if isinstance(logits, DTensor) else logits
                scores_NX = local.detach().softmax(-1).flatten(0, 1) + layer.bias_X
                chosen_NP = scores_NX.topk(layer.experts_per_token).indices
                rows = torch.cat([tokens_BS.reshape(-1, 1), chosen_NP], dim=1)
                into.setdefault(name, []).extend(rows.tolist())

            handles.append(module.router.register_forward_hook(note))
    state.parts.runner.evaluate(local_batch(state, 0))
    for handle in handles:
        handle.remove()


def _model(state: State) -> LanguageModel:
    """The whole model: these layouts have one stage."""
    model = state.modules[0]
    assert isinstance(model, LanguageModel)
    return model


def main() -> int:
    """Run one rank: a few steps, then the choices; then again with one router leaning."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, out = int(os.environ["RANK"]), Path(os.environ["OUT"])
    state = build_state(preset("tiny-moe", dtype="fp64"), parse_layout(os.environ["LAYOUT"]))
    for _ in range(STEPS):
        train_step(state)
    honest: dict[str, list[list[int]]] = {}
    record(state, honest)
    mixture = _model(state).get_submodule("layers.0.feed_forward")
    assert isinstance(mixture, MixtureOfExperts)
    mixture.bias_X[0] += 0.01
    leaning: dict[str, list[list[int]]] = {}
    record(state, leaning)
    (out / f"routes-{rank}.json").write_text(json.dumps([honest, leaning]))
    dist.barrier()
    return 0


def merged(folder: Path) -> list[dict[str, np.ndarray]]:
    """Bring together what the ranks wrote: (tokens, experts), by layer, in order of tokens."""
    found: list[dict[str, np.ndarray]] = []
    for number in (0, 1):
        layers: dict[str, list[list[int]]] = {}
        for path in sorted(folder.glob("routes-*.json")):
            for name, rows in json.loads(path.read_text())[number].items():
                layers.setdefault(name, []).extend(rows)
        found.append({name: np.array(sorted(rows))[:, 1:] for name, rows in layers.items()})
    return found
