"""The training script's command line, and the start line that several runs can wait at."""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch

from examples.pretrain.config import DTYPES, PRESETS, TrainConfig, check_layout, preset
from examples.pretrain.pace import TOKENS_PER_S_PER_GPU
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout

_START_DEADLINE_S = 600.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parsed command line."""

    config: TrainConfig
    layout: Layout
    name: str
    steps: int
    boundary_every: int
    checkpoint_dir: Path
    step_log: Path | None
    wait_for: Path | None
    plain: bool
    device: str
    device_tokens_per_s: float


def parse_layout(text: str) -> Layout:
    """Read a layout like `dp_shard=2,tp=2`.

    Raises:
        InputInvalid: not such a list, an axis that is unknown or named twice, an impossible degree.
    """
    values: dict[str, int | str | bool] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not value:
            raise InputInvalid(f"layout {text!r}: {part!r} is not NAME=DEGREE, like dp_shard=2")
        if (name := name.strip()) in values:
            raise InputInvalid(f"layout {text!r}: {name} is there twice")
        # One number is a list of one layer's.
        values[name] = value.strip() if name == "cp_layers" else _value(value.strip())
    return Layout.from_dict(values)


def _value(text: str) -> int | str | bool:
    """Read a degree, `true` or `false`, or a name."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() and text.isascii() else text


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line; exits with status 2 if it is invalid."""
    parser = argparse.ArgumentParser(prog="examples.pretrain", description=__doc__)
    parser.add_argument("--preset", default="demo", choices=sorted(PRESETS))
    parser.add_argument("--dtype", default="fp32", choices=sorted(DTYPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", default="", help="degrees, e.g. dp_shard=2,tp=2 (1 rank)")
    parser.add_argument("--name", default="pretrain", help="what people call this run")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--boundary-every", type=int, default=10, help="steps per checkpoint")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--losses", type=Path, help="append one JSON line per step to this file")
    parser.add_argument("--wait-for", type=Path, help="say ready, begin when this file exists")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--device-tokens-per-s",
        type=float,
        default=TOKENS_PER_S_PER_GPU,
        help="pace of one simulated device (with WATTMESH_FAKE_GPUS)",
    )
    parser.add_argument("--plain", action="store_true", help="train without wattmesh, unpaced")
    chosen = parser.parse_args(arguments)
    try:
        config = preset(chosen.preset, dtype=chosen.dtype, seed=chosen.seed)
        layout = parse_layout(chosen.layout)
        check_layout(config, layout)
    except InputInvalid as error:
        parser.error(str(error))
    if not 0.0 < chosen.device_tokens_per_s < inf:
        parser.error(f"--device-tokens-per-s {chosen.device_tokens_per_s} must be above 0")
    return Options(
        config=config,
        layout=layout,
        name=chosen.name,
        steps=chosen.steps,
        boundary_every=chosen.boundary_every,
        checkpoint_dir=chosen.checkpoint_dir,
        step_log=chosen.losses,
        wait_for=chosen.wait_for,
        plain=chosen.plain,
        device=chosen.device,
        device_tokens_per_s=chosen.device_tokens_per_s,
    )


def global_rank() -> int:
    """Return this process's rank among all launched ones; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def take_device(device: str) -> None:
    """Make this process use one GPU of its own, or one CPU thread."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        torch.set_num_threads(1)


def wait_at_start_line(start: Path | None) -> float | None:
    """Mark this rank as ready (file `START.ready.RANK`), and wait until file `start` exists.

    Returns:
        When the first step must begin (monotonic), if the file says so; None: at once.

    Raises:
        InputInvalid: the file did not appear within ten minutes.
    """
    if start is None:
        return None
    start.with_name(f"{start.name}.ready.{global_rank()}").touch()
    deadline_s = time.monotonic() + _START_DEADLINE_S
    while not start.exists():
        if time.monotonic() > deadline_s:
            raise InputInvalid(f"{start} did not appear within {_START_DEADLINE_S:g} s")
        time.sleep(_POLL_S)
    told = start.read_text()
    return float(told) if told else None
