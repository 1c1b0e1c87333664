"""Real `torch_dist` checkpoints, made once, and what Megatron's own loader gives of them.

No Megatron is imported here; sources/megatron_job.py saves and loads in processes of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.universal.exports.scattered import bits
from tests.universal.sources.megatron_job import Case
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.sources.source import Source

PATIENCE_S = 240
RANKS = 2

CASES = (
    Case("sharded", tp=2, bf16=True, optimizer="fully_reshardable", tied=True, targets=((1, 2),)),
    Case("staged", pp=2, targets=((2, 1),)),
    Case("parallel", bf16=True, stacked=False, parallel=True, targets=((1, 1),)),
    Case("buckets", bf16=True, optimizer="dp_reshardable"),
)

EXPERTS = (
    Case("experts", ep=2, bf16=True, optimizer="fully_reshardable", experts=4, targets=((1, 2),)),
    Case("chained", ep=2, experts=4, targets=((1, 1),)),
    Case("grouped", ep=2, bf16=True, optimizer="fully_reshardable", experts=4, grouped=True,
         stacked=False, targets=((2, 1),)),
)  # fmt: skip
"""Mixtures: one expert a module, in one stack; two optimizers with a step each; grouped."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What Megatron's loader gave a rank: a box of a tensor; `state` "weight" is the model's."""

    name: str
    state: str
    start: tuple[int, ...]
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Saved:
    """What came of the cases; `folder / case` is what Megatron saved."""

    folder: Path

    def pieces(self, case: Case) -> list[Piece]:
        """What every rank was given in every target layout."""
        files = sorted(self.folder.glob(f"{case.name}.*.pt"))
        return [Piece(*each) for path in files for each in torch.load(path, weights_only=True)]


def save_all(folder: Path, ranks: int, cases: Sequence[Case]) -> Saved:
    """Save and load every case."""
    command = [
        sys.executable,
        "-m",
        "tests.universal.sources.megatron_job",
        str(folder),
        str(ranks),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                   "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    done = subprocess.run(
        [*command, *(json.dumps(asdict(case)) for case in cases)], env=environment,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return Saved(folder)


def differing(source: Source, pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Keys whose bits are not those that Megatron loads, and keys that only one side has.

    Where a parameter is its fp32 master, the weight that Megatron loads must be its cast.
    """
    rows = {entry.key: row for row, entry in enumerate(source.index.entries)}
    mastered = {each.name for each in pieces if each.state == "param"}
    wanted = {key for key in rows if key[1] in ("param", "exp_avg", "exp_avg_sq")}
    found: set[tuple[str, str]] = set()
    seen: set[tuple[str, str]] = set()
    with Files(source.folder) as files:
        reader = Reader(source.index, files)
        for piece in pieces:
            key = (piece.name, "param" if piece.state == "weight" else piece.state)
            seen.add(key)
            if key not in rows:
                found.add(key)
                continue
            entry = source.index.entries[rows[key]]
            read = torch.from_numpy(
                reader.read(rows[key], Box(piece.start, tuple(piece.tensor.shape))).copy()
            )
            dtype = getattr(torch, entry.dtype)
            read = read.view(dtype) if read.dtype != dtype else read
            if piece.state == "weight" and piece.name in mastered:
                read = read.to(piece.tensor.dtype)
            if read.dtype != piece.tensor.dtype or bits(read) != bits(piece.tensor):
                found.add(key)
    weights = {(each.name, "param") for each in pieces if each.state == "weight"}
    parameters = {key for key in wanted if key[1] == "param"}
    return sorted(found | (wanted ^ seen) | (parameters ^ weights))


def _changed(
    pieces: Sequence[Piece], key: tuple[str, str], how: Callable[[torch.Tensor], None]
) -> list[Piece]:
    changed = [
        replace(each, tensor=each.tensor.clone()) if (each.name, each.state) == key else each
        for each in pieces
    ]
    for each in changed:
        if (each.name, each.state) == key:
            how(each.tensor)
    return changed


def _bit(tensor: torch.Tensor) -> None:
    tensor.view(-1).view(torch.uint8)[0] ^= 1


def _swap(tensor: torch.Tensor) -> None:
    rows = tensor.view(-1, tensor.shape[-1])
    rows[[0, 1]] = rows[[1, 0]]


def _other_layer(pieces: Sequence[Piece], key: tuple[str, str]) -> list[Piece]:
    """The first two layers in each other's place."""
    names = {".layers.0.": ".layers.1.", ".layers.1.": ".layers.0."}
    ends = key[0].split(".layers.0.")[-1]

    def swapped(piece: Piece) -> Piece:
        for one, other in names.items():
            if one in piece.name and piece.name.endswith(ends) and piece.state == key[1]:
                return replace(piece, name=piece.name.replace(one, other))
        return piece

    return list(map(swapped, pieces))


SPOILT: dict[str, Callable[[Sequence[Piece], tuple[str, str]], list[Piece]]] = {
    "one bit": lambda pieces, key: _changed(pieces, key, _bit),
    "two rows swapped": lambda pieces, key: _changed(pieces, key, _swap),
    "two layers swapped": _other_layer,
    "lost": lambda pieces, key: [each for each in pieces if (each.name, each.state) != key],
}
"""What the comparison must notice."""


@pytest.fixture(scope="session")
def megatron_runs(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Every case of CASES and of EXPERTS, saved once: Megatron is imported once for all."""
    return save_all(tmp_path_factory.mktemp("megatron_runs"), RANKS, (*CASES, *EXPERTS))
